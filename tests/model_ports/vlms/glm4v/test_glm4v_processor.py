"""Prompts of GLM-4.6V-Flash: text, tokens, positions and cells; thinking, end tokens, boxes."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from support.glm4v import ENDS, GlmPair
from support.key_manifest import DATA
from support.parity import textured_image

from model_ports.errors import UserError
from model_ports.port import with_options
from model_ports.prompt import collate
from model_ports.vlms.glm4v import PORT
from vrh_jax.answers import parse_box
from vrh_jax.config import ModelSettings
from vrh_jax.study.models import Checkpoints

IMAGE = "<|begin_of_image|><|image|><|end_of_image|>"


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return GlmPair.make(tmp_path_factory.mktemp("glm4v"))


@pytest.mark.parametrize("image_first", [True, False])
@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("sizes", [[], [(150, 100)], [(28, 28), (20, 190)]])
def test_text_tokens_positions_and_slots(pair, sizes, thinking, image_first):
    """The text is what the published template renders, thinking (the default) and not."""
    images = [textured_image(*size, seed=i) for i, size in enumerate(sizes)]
    processor = with_options(pair.processor, {} if thinking else {"thinking": False})
    prompt = processor.prepare("What is <it>?\n  2", images, image_first=image_first)
    parts = [IMAGE * len(images), "What is <it>?\n  2"]
    turn = "".join(parts if image_first else parts[::-1])
    ending = "<|assistant|>\n" if thinking else "/nothink<|assistant|>\n<think></think>\n"
    assert prompt.text == f"[gMASK]<sop><|user|>\n{turn}{ending}"
    inputs = pair.inputs(prompt, images)
    positions, delta = pair.reference.model.get_rope_index(
        inputs["input_ids"],
        mm_token_type_ids=inputs["mm_token_type_ids"],
        image_grid_thw=inputs.get("image_grid_thw"),
        attention_mask=inputs["attention_mask"],
    )
    assert np.array_equal(prompt.positions, positions[:, 0])
    assert int(prompt.positions.max()) + 1 - len(prompt) == int(delta)
    assert collate([prompt]).next_position.tolist() == [int(positions.max()) + 1]
    slots = np.flatnonzero(prompt.tokens == pair.config.image_token_id)
    assert np.array_equal(prompt.grid.slot, slots)
    for number, image in enumerate(images):
        grid = inputs["image_grid_thw"][number]
        assert (prompt.grid.image == number).sum() == int(grid.prod()) // 4
        assert processor.resized(image.size) == (int(grid[2]) * 14, int(grid[1]) * 14)


def test_an_answer_ends_at_any_of_the_configs_end_tokens(pair):
    tokenizer = pair.processor.tokenizer
    ids = [tokenizer.convert_tokens_to_ids(name) for name in ENDS]
    assert pair.processor.eos_ids == tuple(sorted(ids))
    answer = "<think>a</think>\n<|begin_of_box|>[[1,22,333,40]]<|end_of_box|>"
    assert pair.processor.decode([*tokenizer(answer)["input_ids"], ids[1], -1]) == answer


def test_options_are_checked(pair):
    with pytest.raises(UserError, match=r"'mode'.*thinking"):
        with_options(pair.processor, {"mode": 1})
    with pytest.raises(UserError, match="expected bool"):
        with_options(pair.processor, {"thinking": "no"})


def test_a_study_turns_thinking_off(pair):
    def settings(**options):
        return ModelSettings(name="glm", source=str(pair.folder), processor=options)

    model = Checkpoints().load(settings(thinking=False), None)
    assert model.processor.prepare("x").text.endswith("<think></think>\n")
    with pytest.raises(UserError, match=r"models\.glm\.processor: .*'thought'"):
        Checkpoints().load(settings(thought=False), None)


def test_other_checkpoints_files_are_refused(pair, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(pair.folder, folder)
    raw = json.loads((folder / "config.json").read_text())
    raw["image_token_id"] = 17
    (folder / "config.json").write_text(json.dumps(raw))
    with pytest.raises(UserError, match="image_token_id 17"):
        PORT.processor(folder, PORT.read_config(raw))
    with pytest.raises(UserError, match=r"<\|image\|>"):
        pair.processor.prepare(f"look at {IMAGE}", [textured_image(30, 30, seed=0)])


def outputs():
    """Printed answers of the family, all of them where the complete set is at hand."""
    folder = os.environ.get("VRH_REALDATA")
    path = Path(folder) / "model_outputs.jsonl" if folder else DATA / "model_outputs.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [row for row in rows if row["model"].startswith("GLM")]


def test_boxes_of_printed_answers():
    rows = outputs()
    assert len(rows) >= 6
    for row in rows:
        box = row["expected_box"]
        assert parse_box(row["text"], PORT.box) == (tuple(box) if box else None), row["text"]


def test_boxes_are_per_mille_of_the_stored_image():
    text = PORT.box.template.format(x0=1, y0=2, x1=30, y1=999, label="red")
    assert text == "<|begin_of_box|>[[1, 2, 30, 999]]<|end_of_box|>"
    thought = f"<think>maybe [[5, 6, 7, 8]]</think>It is at {text}"
    assert parse_box(thought, PORT.box) == (1, 2, 30, 999)
    assert PORT.box.pixels((1, 2, 30, 999), (640, 480), (644, 476)) == pytest.approx(
        (0.64, 0.96, 19.2, 479.52)
    )
