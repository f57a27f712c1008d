"""Prompts of Qwen3-VL: tokens, positions and cells against transformers; loading; errors."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file, save_file
from support.parity import textured_image
from support.qwen3 import Qwen3Pair

from model_ports.convert.load import load_model
from model_ports.convert.pieces import flatten
from model_ports.errors import UserError
from model_ports.prompt import collate
from model_ports.vlms.qwen3_vl import PORT


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return Qwen3Pair.make(tmp_path_factory.mktemp("qwen3"))


@pytest.fixture
def folder(pair, tmp_path):
    """A copy of the checkpoint that a test may spoil."""
    target = tmp_path / "copy"
    shutil.copytree(pair.folder, target)
    return target


@pytest.mark.parametrize("image_first", [True, False])
@pytest.mark.parametrize("sizes", [[], [(150, 100)], [(400, 30), (64, 64)]])
def test_tokens_positions_and_slots(pair, sizes, image_first):
    images = [textured_image(*size, seed=i) for i, size in enumerate(sizes)]
    question = "What is in <the> picture?\n  2"
    prompt = pair.processor.prepare(question, images, image_first=image_first)
    picture = "<|vision_start|><|image_pad|><|vision_end|>" * len(images)
    turn = picture + question if image_first else question + picture
    # No system turn, unlike Qwen2.5-VL.
    assert prompt.text == f"<|im_start|>user\n{turn}<|im_end|>\n<|im_start|>assistant\n"
    inputs = pair.inputs(prompt, images)
    assert prompt.tokens.tolist() == inputs["input_ids"][0].tolist()
    positions, delta = pair.reference.model.get_rope_index(
        inputs["input_ids"],
        mm_token_type_ids=inputs["mm_token_type_ids"],
        image_grid_thw=inputs.get("image_grid_thw"),
        attention_mask=inputs["attention_mask"],
    )
    assert np.array_equal(prompt.positions, positions[:, 0].numpy())
    assert collate([prompt]).next_position.tolist() == [len(prompt) + int(delta)]
    slots = np.flatnonzero(prompt.tokens == pair.config.image_token_id)
    assert np.array_equal(prompt.grid.slot, slots)
    assert np.array_equal(prompt.visual_index[slots], np.arange(len(slots)))
    assert (np.delete(prompt.visual_index, slots) == -1).all()
    grids = pair.pixels(images)["image_grid_thw"].tolist() if images else []
    for number, (image, grid) in enumerate(zip(images, grids, strict=True)):
        rect = prompt.grid.rect[prompt.grid.image == number]
        assert len(rect) == grid[1] * grid[2] // 4
        assert rect[:, 2:].max(0) == pytest.approx(image.size)
        assert pair.processor.resized(image.size) == (grid[2] * 16, grid[1] * 16)


def test_published_budget(tmp_path, pair):
    """A 640 x 480 image has 300 tokens with the published budget, 768 or more with that of the
    authors' ODinW evaluation."""
    shutil.copytree(pair.folder, tmp_path / "copy")
    path = tmp_path / "copy/preprocessor_config.json"
    for low, high, tokens in (
        (65536, 16777216, 300),
        (768 * 32 * 32, 12800 * 32 * 32, 24 * 32),
    ):
        size = {"shortest_edge": low, "longest_edge": high}
        path.write_text(json.dumps(json.loads(path.read_text()) | {"size": size}))
        processor = PORT.processor(tmp_path / "copy", pair.config)
        width, height = processor.resized((640, 480))
        assert width // 32 * (height // 32) == tokens


def test_loads_bit_identically_from_its_layouts(pair, folder):
    """As transformers saves it, and under the names of its modules (which are the published)."""
    want = flatten(pair.params)
    for attempt in ("saved", "in memory"):
        if attempt == "in memory":
            state = pair.reference.state_dict()
            tensors = {name: value.contiguous().numpy() for name, value in state.items()}
            assert set(tensors) == set(load_file(folder / "model.safetensors"))
            save_file(tensors, folder / "model.safetensors")
        got = flatten(load_model(folder).params)
        assert set(got) == set(want)
        for path, leaf in got.items():
            assert np.asarray(leaf).tobytes() == np.asarray(want[path]).tobytes(), path


def test_errors_by_name(pair, folder):
    with pytest.raises(UserError, match=r"<\|image_pad\|>"):
        pair.processor.prepare("look at <|image_pad|>", [textured_image(30, 30, seed=0)])
    for size in ((1, 1000), (1000, 1), (3, 700)):
        with pytest.raises(UserError, match=f"{size[0]}x{size[1]} pixels.*aspect ratio above 200"):
            pair.processor.prepare("x", [Image.new("RGB", size)])
    path = folder / "preprocessor_config.json"
    raw = json.loads(path.read_text())
    for change, named in (({"patch_size": 14}, "patch_size"), ({"surprise": 1}, "surprise")):
        path.write_text(json.dumps(raw | change))
        with pytest.raises(UserError, match=named):
            PORT.processor(folder, pair.config)
