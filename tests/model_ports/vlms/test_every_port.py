"""What holds for every port, model by model; a new port is one row of ROWS.

What is particular to a model is tested in the folder of its family.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import pytest
from support import cases, port_files
from support.deepseek import DeepseekPair
from support.glm4v import GlmPair
from support.internvl import InternPair
from support.llava import LlavaPair
from support.magma import TINY, MagmaPair
from support.paligemma import PaliPair
from support.phi4_rv import PhiPair
from support.qwen3 import Qwen3Pair
from support.qwen25 import Pair
from support.vlm_checks import make_samples

from model_ports.port import Port
from model_ports.prompt import Side
from model_ports.registry import ports
from model_ports.vlms import (
    deepseek_vl2,
    glm4v,
    internvl,
    llava_next,
    magma,
    paligemma2,
    phi4_rv,
    qwen2_5_vl,
    qwen3_vl,
)

# Wide and tall, small and large, two images in one prompt, none; in front of the text or after.
SIZES = (((150, 100),), ((61, 230),), ((30, 20), (120, 170)), ())
TEXTS = ("Locate the red square", "What is left of it, output JSON", "Compare 0123", "Where is it")
# Of each sample, and the image that it is in.
BOXES = (
    ((20.0, 10.0, 90.0, 70.0), 0),
    ((5.0, 100.0, 40.0, 180.0), 0),
    ((9.0, 9.0, 60.0, 60.0), 1),
    None,
)
SIDES = pytest.mark.parametrize("side", ["left", "right"])


@dataclasses.dataclass(frozen=True)
class Row:
    """One model of the study.

    Attributes:
        make: writes a tiny checkpoint of wide random weights, by its seed, and reads both sides.
        files: published table of tensors -> (how many, layout on disk, parameters).
        text_first: the text may precede the images.
        compared: transformers has a class for the tiny checkpoint.
        patch: entered while the tiny checkpoint is in use.
    """

    port: Port
    make: Callable[..., Any]
    files: Mapping[str, tuple[int, str, int]]
    text_first: bool = True
    compared: bool = True
    patch: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext


def _intern(backbone: str, *, remote: bool = False) -> Callable[..., InternPair]:
    return lambda folder, seed: InternPair.make(folder, seed=seed, backbone=backbone, remote=remote)


ROWS = {
    "qwen2.5-vl-7b": Row(
        qwen2_5_vl.PORT, Pair.make, {"qwen2.5-vl-7b": (729, "published", 8_292_166_656)}
    ),
    "qwen3-vl-8b": Row(
        qwen3_vl.PORT, Qwen3Pair.make, {"qwen3-vl-8b": (750, "published", 8_767_123_696)}
    ),
    "internvl3-8b": Row(
        internvl.PORT,
        _intern("qwen2"),
        {
            "internvl3-8b": (685, "remote", 7_944_373_760),
            "internvl3-8b-hf": (781, "hf_old", 7_944_373_760),
        },
    ),
    "internvl3.5-8b": Row(
        internvl.PORT,
        _intern("qwen3"),
        {
            "internvl3.5-8b": (745, "remote", 8_528_318_464),
            "internvl3.5-8b-hf": (841, "hf_old", 8_528_318_464),
        },
    ),
    # The oracle is transformers' InternVL on a Llama; the files are those of the hub's own code.
    "internvl2.5-8b": Row(
        internvl.PORT,
        _intern("llama", remote=True),
        {
            "internvl2.5-8b": (573, "remote", 8_075_365_376),
            "internvl2.5-8b-mpo-hf": (733, "hf_old", 8_075_365_376),
        },
        compared=False,
    ),
    "llava-next-llama3-8b": Row(
        llava_next.PORT,
        LlavaPair.make,
        {
            "llava-next-llama3-8b-hf": (687, "published", 8_355_276_800),
            "llava-next-llama3-8b": (687, "original", 8_354_752_512),
        },
    ),
    "magma-8b": Row(
        magma.PORT,
        MagmaPair.make,
        {"magma-8b": (674, "published", 8_903_066_496)},
        compared=False,
        patch=lambda: mock.patch.dict(magma.config.BACKBONES, {"convnexttiny": TINY}),
    ),
    "paligemma2-10b": Row(
        paligemma2.PORT,
        PaliPair.make,
        {"paligemma2-10b": (903, "published", 9_663_523_568)},
        text_first=False,
    ),
    "deepseek-vl2-small": Row(
        deepseek_vl2.PORT,
        DeepseekPair.make,
        {"deepseek-vl2-small": (5639, "published", 16_148_349_504)},
        compared=False,
    ),
    "glm-4.6v-flash": Row(
        glm4v.PORT, GlmPair.make, {"glm-4.6v-flash": (704, "published", 10_292_777_472)}
    ),
    "phi-4-reasoning-vision-15b": Row(
        phi4_rv.PORT,
        PhiPair.make,
        {"phi-4-reasoning-vision-15b": (695, "published", 15_119_518_144)},
        compared=False,
    ),
}
# The study's models, as docs/ and the configs name them.
STUDY = (
    "qwen2.5-vl-7b", "qwen3-vl-8b", "internvl3-8b", "internvl3.5-8b", "internvl2.5-8b",
    "llava-next-llama3-8b", "magma-8b", "paligemma2-10b", "deepseek-vl2-small", "glm-4.6v-flash",
    "phi-4-reasoning-vision-15b",
)  # fmt: skip
SEED = 0


@pytest.fixture(scope="module", params=ROWS)
def name(request: pytest.FixtureRequest) -> Iterator[str]:
    """One model after the other: what is compiled for one is dropped before the next."""
    yield request.param
    jax.clear_caches()


@pytest.fixture(scope="module")
def row(name: str) -> Row:
    return ROWS[name]


@pytest.fixture(scope="module")
def pair(row: Row, name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with row.patch():
        yield row.make(tmp_path_factory.mktemp(name), seed=SEED)


@pytest.fixture(scope="module")
def case(row: Row, pair: Any) -> cases.Case:
    image_first = (True, *[not row.text_first] * 2, True)
    specs = list(zip(SIZES, TEXTS, image_first, strict=True))
    return cases.Case.make(pair, make_samples(pair, specs), SEED + 1)


def test_every_model_of_the_study_has_a_row() -> None:
    assert sorted(ROWS) == sorted(STUDY)
    assert set(ROWS) == {name for port in ports() if port.box for name in port.names}


@SIDES
def test_logits_of_a_mixed_batch(case: cases.Case, side: Side) -> None:
    cases.check_logits(case, case.plain, side, None)


@SIDES
def test_greedy_tokens_with_all_heads_and_without_some(case: cases.Case, side: Side) -> None:
    cases.check_greedy(case, side)


@SIDES
def test_cached_steps_equal_a_whole_forward(case: cases.Case, side: Side) -> None:
    cases.check_cached(case, side)


def test_masked_heads_of_both_kinds(case: cases.Case) -> None:
    cases.check_masked(case)


@SIDES
def test_attention_and_region_mass_of_answer_rows(case: cases.Case, side: Side) -> None:
    cases.check_attention(case, BOXES, side)


def test_the_program_does_not_grow_with_depth(case: cases.Case, row: Row) -> None:
    once = cases.decoder_program(case, row.port, 1)
    assert once == cases.decoder_program(case, row.port, 3)


def test_bfloat16_stays_bfloat16(case: cases.Case, row: Row) -> None:
    cases.check_bfloat16(case, row.port)


def test_files_go_through_bit_for_bit(pair: Any, row: Row, tmp_path: Path) -> None:
    port_files.check_files(pair, row.port, tmp_path, compared=row.compared)
    port_files.check_duplicate(pair, tmp_path)


def test_full_size_tables_match_both_ways(row: Row) -> None:
    for name, expected in row.files.items():
        port_files.check_full_size(row.port, name, *expected, seed=SEED)


def test_published_configs_are_read_strictly(row: Row) -> None:
    for name in row.files:
        port_files.check_config(row.port, name)


def test_other_tables_know_the_model(row: Row, name: str) -> None:
    port_files.check_rows_elsewhere(row.port, name)
