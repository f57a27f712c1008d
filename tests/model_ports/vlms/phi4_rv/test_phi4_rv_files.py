"""Prompts, answers, processor settings and files of a tiny Phi-4-Reasoning-Vision checkpoint."""

import json
import shutil

import numpy as np
import pytest
from support.key_manifest import DATA
from support.parity import textured_image
from support.phi4_rv import HIGH, LOW, PATCH, PREPROCESSOR, SYSTEM, PhiPair, pixels_of

from model_ports.errors import UserError
from model_ports.port import with_options
from model_ports.vlms.phi4_rv import PORT
from vrh_jax.answers import parse_box
from vrh_jax.answers.clean import strip_thoughts
from vrh_jax.config import ModelSettings, ScoringSettings
from vrh_jax.data.sample import Sample
from vrh_jax.engine.capture import key_sets
from vrh_jax.study.models import Checkpoints


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return PhiPair.make(tmp_path_factory.mktemp("phi4_rv"), seed=3)


@pytest.mark.parametrize("image_first", [True, False])
@pytest.mark.parametrize("sizes", [[], [(61, 40)], [(9, 30), (150, 100)]])
@pytest.mark.parametrize(
    ("thinking", "end"), [(None, ""), (True, "<think>"), (False, "<|dummy_84|>")]
)
def test_text_tokens_and_slots(pair, sizes, image_first, thinking, end):
    """The text is what the template renders for a string with a line per image; the pieces
    around the images are tokenized one by one."""
    options = {} if thinking is None else {"thinking": thinking}
    processor = with_options(pair.processor, options)
    images = [textured_image(*size, seed=i) for i, size in enumerate(sizes)]
    prompt = processor.prepare("What is <it>?\n  2", images, image_first=image_first)
    marks = ["<image>"] * len(images)
    lines = [*marks, "What is <it>?\n  2"] if image_first else ["What is <it>?\n  2", *marks]
    assert prompt.text == (
        f"<|im_start|>system<|im_sep|>{SYSTEM}<|im_end|>\n<|im_start|>user<|im_sep|>"
        + "\n".join(lines)
        + f"<|im_end|>\n<|im_start|>assistant<|im_sep|>\n{end}"
    )
    pixels = pixels_of(images, PATCH, LOW, HIGH) if images else {}
    counts = [r * c for r, c in pixels["spatial_shapes"].tolist()] if images else []
    tokenizer, expected, slots = processor.tokenizer, [], []
    for chunk, count in zip(prompt.text.split("<image>"), [*counts, 0], strict=True):
        expected += tokenizer(chunk)["input_ids"]
        slots += range(len(expected), len(expected) + count)
        expected += [0] * count
    assert prompt.tokens.tolist() == expected
    assert prompt.positions.tolist() == [list(range(len(expected)))]
    assert prompt.grid.slot.tolist() == slots
    assert prompt.visual_index[slots].tolist() == list(range(len(slots)))
    assert (prompt.visual_index >= 0).sum() == len(slots)
    assert prompt.grid.image.tolist() == [i for i, n in enumerate(counts) for _ in range(n)]
    for i, image in enumerate(images):
        rows, columns = pixels["spatial_shapes"][i].tolist()
        assert processor.resized(image.size) == (columns * PATCH, rows * PATCH)
        got = prompt.images["patches"][i, : counts[i]]
        np.testing.assert_allclose(got, pixels["pixel_values"][i, : counts[i]], atol=1e-6)
        assert prompt.grid.rect[prompt.grid.image == i].max(0)[2:].tolist() == list(image.size)
    if not images:
        assert processor.token_slots(prompt, "<it>").size


def test_prompts_that_it_cannot_honour_are_refused(pair):
    image = textured_image(60, 60, 0)
    with pytest.raises(UserError, match="<image>"):
        pair.processor.prepare("what is <image>", [image])
    with pytest.raises(UserError, match=r"keeps the first 300"):
        pair.processor.prepare("where", [image] * 8)
    with pytest.raises(UserError, match=r"'system'.*thinking"):
        with_options(pair.processor, {"system": "x"})
    with pytest.raises(UserError, match="expected bool"):
        with_options(pair.processor, {"thinking": "no"})


def test_a_study_turns_thinking_off(pair):
    settings = ModelSettings(name="phi", source=str(pair.folder), processor={"thinking": False})
    model = Checkpoints().load(settings, None)
    assert model.processor.prepare("x").text.endswith("<|im_sep|>\n<|dummy_84|>")


def test_thoughts_are_no_answer():
    """The template's system turn defines the two forms of an answer."""
    box = "[0.1, 0.2, 0.3, 0.4]"
    for text in (
        f"<think> maybe [0.5, 0.5, 0.9, 0.9] </think> {box}",
        f"maybe [0.5, 0.5, 0.9, 0.9] </think>{box}",  # the prompt opened the block
        f"<|dummy_84|> {box}",
        box,
    ):
        assert strip_thoughts(text).strip() == box
        assert parse_box(text, PORT.box) == (0.1, 0.2, 0.3, 0.4)
    assert parse_box(f"<think> maybe {box}", PORT.box) is None  # cut short


@pytest.mark.parametrize(
    "thought", ["<think>at [0.5, 0.5]\n</think>", "at [0.5, 0.5] </think>", "<|dummy_84|>", ""]
)
@pytest.mark.parametrize("tokens", ["all", "coords"])
def test_rows_are_those_of_the_answer_after_the_thoughts(pair, thought, tokens):
    """The mark of an answer without thoughts holds digits, but is no coordinate."""
    image = textured_image(60, 60, 0)
    sample = Sample(
        id="1", kind="grounding", text="", image=lambda: image, image_size=(60, 60),
        box=(10.0, 10.0, 40.0, 30.0), answer="", image_id="1", group="1",
    )  # fmt: skip
    processor = pair.processor
    encode = lambda text: processor.tokenizer(text)["input_ids"]  # noqa: E731
    answer = [*encode(thought), *encode("[0.1,"), *encode("0.2]")]
    prompt = processor.prepare("Locate", [image])
    settings = ScoringSettings(tokens=tokens)
    scored = key_sets(processor, prompt, sample, answer, settings)
    chosen = "".join(processor.decode([answer[i]]) for i in scored.chosen)
    kept = [i for i in scored.chosen if i >= len(encode(thought))]
    assert kept == list(scored.chosen)
    assert chosen == "[0.1,0.2]" or tokens == "coords"
    assert [c for c in chosen if c.isdigit()] == list("0102")


def test_published_answers_and_frame():
    rows = [json.loads(row) for row in (DATA / "model_outputs.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["model"].startswith("Phi-4")]
    assert rows
    for row in rows:
        assert parse_box(row["text"], PORT.box) == tuple(row["expected_box"])
        pixels = PORT.box.pixels(tuple(row["expected_box"]), (960, 540), (960, 544))
        assert pixels == pytest.approx((167.04, 468.72, 215.04, 527.58))  # of the stored image


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"patch_size": 16}, "patch_size"),
        ({"max_num_patches": 256}, "max_num_patches"),
        ({"min_num_patches": 1}, "min_num_patches"),
        ({"image_mean": [0.48, 0.45, 0.4]}, "image_mean"),
        ({"resample": 3}, "resample"),
        ({"do_normalize": False}, "do_normalize"),
        ({"image_processor_type": "Siglip2ImageProcessor"}, "image_processor_type"),
    ],
)
def test_settings_that_it_cannot_honour_are_refused(pair, tmp_path, change, named):
    shutil.copytree(pair.folder, tmp_path / "copy")
    path = tmp_path / "copy/preprocessor_config.json"
    path.write_text(json.dumps(PREPROCESSOR | change))
    with pytest.raises(UserError, match=named):
        PORT.processor(tmp_path / "copy", pair.config)
    path.unlink()  # config.json says it all
    assert PORT.processor(tmp_path / "copy", pair.config).crops == pair.config.pixels


def test_files_of_another_model_are_refused(pair, tmp_path):
    shutil.copytree(pair.folder, tmp_path / "copy")
    (tmp_path / "copy/chat_template.jinja").unlink()
    with pytest.raises(UserError, match="chat template"):
        PORT.processor(tmp_path / "copy", pair.config)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        path = tmp_path / "copy" / name
        path.write_text(path.read_text().replace("<|dummy_84|>", "<|dummy_85|>"))
    with pytest.raises(UserError, match="dummy_84"):
        PORT.processor(tmp_path / "copy", pair.config)
