"""Prompts of Qwen2.5-VL: tokens, positions and cells against transformers; errors by name."""

import json
import shutil

import jax
import numpy as np
import pytest
import torch
from flax import nnx
from PIL import Image
from support.parity import textured_image
from support.qwen25 import SPECIAL, TEMPLATE, Pair
from transformers import AutoTokenizer

from model_ports.convert.load import load_model
from model_ports.errors import UserError
from model_ports.prompt import collate
from model_ports.vlms.qwen2_5_vl import PORT
from model_ports.vlms.qwen_common.positions import mrope_positions


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return Pair.make(tmp_path_factory.mktemp("qwen25"))


@pytest.fixture
def folder(pair, tmp_path):
    """A copy of the checkpoint that a test may spoil."""
    target = tmp_path / "copy"
    shutil.copytree(pair.folder, target)
    return target


def load(folder):
    config = PORT.read_config(json.loads((folder / "config.json").read_text()))
    return PORT.processor(folder, config)


def reference_positions(pair, prompt, images):
    inputs = pair.inputs(prompt, images)
    positions, delta = pair.reference.model.get_rope_index(
        inputs["input_ids"],
        mm_token_type_ids=inputs["mm_token_type_ids"],
        image_grid_thw=inputs.get("image_grid_thw"),
        attention_mask=inputs["attention_mask"],
    )
    return positions[:, 0].numpy(), int(delta)


@pytest.mark.parametrize("image_first", [True, False])
@pytest.mark.parametrize(
    "sizes", [[], [(150, 100)], [(20, 190)], [(400, 30), (64, 64)], [(28, 28), (90, 60), (60, 200)]]
)
def test_tokens_positions_and_slots(pair, sizes, image_first):
    images = [textured_image(*size, seed=i) for i, size in enumerate(sizes)]
    question = "What is in <the> picture?\n  2"
    prompt = pair.processor.prepare(question, images, image_first=image_first)
    picture = "<|vision_start|><|image_pad|><|vision_end|>" * len(images)
    turn = picture + question if image_first else question + picture
    assert prompt.text == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
        f"{turn}<|im_end|>\n<|im_start|>assistant\n"
    )
    positions, delta = reference_positions(pair, prompt, images)
    assert np.array_equal(prompt.positions, positions)
    assert int(prompt.positions.max()) + 1 - len(prompt) == delta
    assert collate([prompt]).next_position.tolist() == [positions.max() + 1]
    # Slots are the sequence positions of the placeholders; features come in the same order.
    slots = np.flatnonzero(prompt.tokens == pair.config.image_token_id)
    assert np.array_equal(prompt.grid.slot, slots)
    assert np.array_equal(prompt.visual_index[slots], np.arange(len(slots)))
    assert (np.delete(prompt.visual_index, slots) == -1).all()
    grids = pair.pixels(images)["image_grid_thw"] if images else []
    counts = [int(g.prod()) // 4 for g in grids]
    assert np.array_equal(prompt.grid.image, np.repeat(np.arange(len(images)), counts))
    for number, (image, grid) in enumerate(zip(images, grids, strict=True)):
        rect = prompt.grid.rect[prompt.grid.image == number]
        assert rect[:, 2].max() == pytest.approx(image.width)
        assert rect[:, 3].max() == pytest.approx(image.height)
        assert pair.processor.resized(image.size) == (int(grid[2]) * 14, int(grid[1]) * 14)


def test_positions_of_the_published_example():
    """A 24 x 36 patch grid in a 224-token prompt, as measured in transformers."""
    positions = mrope_positions(224, [5], [(12, 18)])
    assert int(positions.max()) + 1 - 224 == -198
    assert positions[:, 5 + 18 + 1].tolist() == [5, 6, 6]
    assert positions[:, -1].tolist() == [25, 25, 25]


def test_an_answer_continues_the_positions(pair):
    image = textured_image(150, 90, seed=4)
    prompt = pair.processor.prepare("Where", [image]).extend([7, 8, 9])
    positions, _ = reference_positions(pair, prompt, [image])
    assert np.array_equal(prompt.positions, positions)


def test_end_tokens_and_decoding(pair):
    tokenizer = pair.processor.tokenizer
    ids = {name: tokenizer.convert_tokens_to_ids(name) for name in SPECIAL}
    assert ids["<|im_end|>"] in pair.processor.eos_ids
    answer = '```json\n[{"bbox_2d": [1, 22, 333, 40], "label": "a"}]\n```'
    tokens = [*tokenizer(answer)["input_ids"], ids["<|im_end|>"], -1]
    assert pair.processor.decode(tokens) == answer
    assert pair.processor.decode([ids["<|vision_start|>"]]) == "<|vision_start|>"


def test_generation_config_adds_end_tokens(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    both = [tokenizer.convert_tokens_to_ids(t) for t in ("<|im_end|>", "<|endoftext|>")]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": both}))
    assert set(both) <= set(load(folder).eos_ids)


def test_box_format_states_resized_pixels():
    text = PORT.box.template.format(x0=1, y0=2, x1=30, y1=40, label="red")
    assert json.loads(text.removeprefix("```json\n").removesuffix("\n```")) == [
        {"bbox_2d": [1, 2, 30, 40], "label": "red"}
    ]
    assert PORT.box.scale((640, 480), (644, 476)) == (640 / 644, 480 / 476)


@pytest.mark.parametrize("where", ["chat_template.json", "chat_template.jinja", "tokenizer"])
def test_template_from_any_of_its_places(folder, where):
    for name in ("chat_template.json", "chat_template.jinja"):
        (folder / name).unlink(missing_ok=True)
    marked = TEMPLATE.replace("helpful", "careful")
    if where == "chat_template.json":
        (folder / where).write_text(json.dumps({"chat_template": marked}))
    elif where == "chat_template.jinja":
        (folder / where).write_text(marked)
    else:
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": marked}))
    assert "You are a careful assistant" in load(folder).prepare("x").text


def test_no_template_and_a_template_without_images(folder):
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    with pytest.raises(UserError, match="no chat template"):
        load(folder)
    text_only = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
    (folder / "chat_template.jinja").write_text(text_only)
    with pytest.raises(UserError, match="image_token_id"):
        load(folder)
    (folder / "chat_template.jinja").write_text("{{ messages[0].content + 1 }}")
    with pytest.raises(UserError, match="cannot render"):
        load(folder)
    (folder / "chat_template.json").write_text("[]")
    with pytest.raises(UserError, match=r"chat_template\.json"):
        load(folder)


def test_tokenizer_of_another_checkpoint(folder):
    raw = json.loads((folder / "config.json").read_text())
    raw["image_token_id"] = 17
    (folder / "config.json").write_text(json.dumps(raw))
    with pytest.raises(UserError, match="image_token_id 17"):
        load(folder)
    raw["image_token_id"] = 5
    raw["text_config"]["vocab_size"] = 100
    (folder / "config.json").write_text(json.dumps(raw))
    with pytest.raises(UserError, match="different checkpoints"):
        load(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(UserError, match="tokenizer"):
        load(folder)


def test_bad_questions_and_images(pair, tmp_path):
    with pytest.raises(UserError, match=r"<\|image_pad\|>"):
        pair.processor.prepare("look at <|image_pad|>", [textured_image(30, 30, seed=0)])
    with pytest.raises(UserError, match="placeholder"):
        pair.processor.prepare("look at <|image_pad|>")
    with pytest.raises(UserError, match="aspect"):
        pair.processor.prepare("x", [Image.new("RGB", (2000, 3))])
    path = tmp_path / "cut.png"
    textured_image(90, 90, seed=0).save(path)
    path.write_bytes(path.read_bytes()[:3000])
    with Image.open(path) as broken, pytest.raises(UserError, match=r"cut\.png"):
        pair.processor.prepare("x", [broken])


@pytest.mark.parametrize("layout", ["published", "in_memory"])
def test_loads_through_the_conversion_path(pair, folder, layout):
    """Both names on disk give the weights that the rules gave."""
    from safetensors.numpy import load_file, save_file

    if layout == "in_memory":
        tensors = {
            name: value.contiguous().numpy() for name, value in pair.reference.state_dict().items()
        }
        assert "model.visual.merger.ln_q.weight" in tensors
        save_file(tensors, folder / "model.safetensors")
    else:
        assert "visual.merger.ln_q.weight" in load_file(folder / "model.safetensors")
    model = load_model(folder)
    image = textured_image(100, 70, seed=6)
    prompt = model.processor.prepare("Where is it", [image])
    features = np.asarray(_features(model, prompt))[0][: len(prompt.grid)]
    inputs = pair.inputs(prompt, [image])
    with torch.no_grad():
        want = pair.reference.model.visual(
            inputs["pixel_values"], grid_thw=inputs["image_grid_thw"]
        ).pooler_output.numpy()
    assert np.abs(features - want).max() < 1e-4 * np.abs(want).max()


def _features(model, prompt):
    features = jax.jit(lambda params, images: nnx.merge(model.graphdef, params).features(images))
    return features(model.params, collate([prompt]).images)


def test_other_preprocessing_budget_is_read_from_the_checkpoint(folder):
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_pixels": 28 * 28 * 6}))
    processor = load(folder)
    image = textured_image(300, 200, seed=1)
    assert processor.resized(image.size) == (84, 56)
    assert len(processor.prepare("x", [image]).grid) == 6
    path.write_text(json.dumps(json.loads(path.read_text()) | {"surprise": 1}))
    with pytest.raises(UserError, match="surprise"):
        load(folder)
