"""Prompts, answers, processor settings and on-disk layouts of a tiny PaliGemma 2 checkpoint."""

import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.key_manifest import DATA
from support.paligemma import PREPROCESSOR, TOKENS, PaliPair, official
from support.parity import textured_image

from model_ports.convert.load import load_model
from model_ports.convert.pieces import flatten
from model_ports.convert.plan import plan_folder
from model_ports.errors import UserError
from model_ports.vlms.paligemma2 import PORT
from vrh_jax.answers.boxes import parse_box, parse_boxes
from vrh_jax.answers.formats import box_format


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return PaliPair.make(tmp_path_factory.mktemp("paligemma2"), seed=3)


TEXTS = ("detect red square", "detect a ; the b, ", "segment 0123", "", "  two  spaces é\tand tab")


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("count", [1, 2])
def test_tokens_equal_the_reference(pair, text, count):
    images = [textured_image(90 + 10 * i, 60, i) for i in range(count)]
    prompt = pair.processor.prepare(text, images)
    made = official(pair.folder)(text="<image>" * count + text, images=[images])
    visual = count * TOKENS
    assert prompt.tokens.tolist() == made["input_ids"][0]
    assert prompt.text == f"{'<image>' * count}<bos>{text}\n"
    assert prompt.prefix == len(prompt) == len(made["token_type_ids"][0])
    assert prompt.positions.tolist() == [list(range(1, len(prompt) + 1))]
    assert prompt.grid.slot.tolist() == list(range(visual))
    assert prompt.grid.image.tolist() == [i for i in range(count) for _ in range(TOKENS)]
    assert prompt.visual_index.tolist() == [*range(visual), *[-1] * (len(prompt) - visual)]
    expected = np.stack([np.asarray(p) for p in made["pixel_values"]])
    np.testing.assert_allclose(prompt.images["pixels"], expected, rtol=0, atol=1e-6)
    longer = prompt.extend([5, 6])
    assert (longer.prefix, len(longer)) == (len(prompt), len(prompt) + 2)
    assert longer.positions[0, -1] == len(prompt) + 2


def test_text_alone(pair):
    prompt = pair.processor.prepare("answer en what?", image_first=False)
    tokenizer = pair.processor.tokenizer
    ids = tokenizer("<bos>answer en what?\n", add_special_tokens=False)["input_ids"]
    assert prompt.tokens.tolist() == ids
    assert not prompt.images
    assert pair.processor.token_slots(prompt, "what").size


def test_prompts_that_it_cannot_honour_are_refused(pair):
    image = textured_image(60, 60, 0)
    with pytest.raises(UserError, match="<image>"):
        pair.processor.prepare("what is <image>", [image])
    with pytest.raises(UserError, match="image_first"):
        pair.processor.prepare("detect it", [image], image_first=False)


def test_answers_keep_location_tokens_and_state_y_first(pair):
    assert PORT.box == box_format("paligemma2-10b")
    answer = PORT.box.template.format(label="red square", x0=152, y0=199, x1=744, y1=1021)
    assert answer == "<loc0199><loc0152><loc1021><loc0744> red square"
    tokenizer = pair.processor.tokenizer
    ids = tokenizer(answer, add_special_tokens=False)["input_ids"]
    assert len(ids) == 4 + len(tokenizer(" red square", add_special_tokens=False)["input_ids"])
    assert pair.processor.decode([*ids, tokenizer.eos_token_id, -1]) == answer
    assert parse_box(answer, PORT.box) == (152, 199, 744, 1021)
    assert PORT.box.pixels((152, 199, 744, 1023), (500, 700), pair.processor.resized((500, 700)))[
        :2
    ] == pytest.approx((152 / 1023 * 500, 199 / 1023 * 700))


def test_published_answers():
    rows = [json.loads(row) for row in (DATA / "model_outputs.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "PaliGemma" in row["model"] and row["expected_box"]]
    assert len(rows) > 4
    for row in rows:
        stated = row.get("expected_boxes") or [row["expected_box"]]
        found = [(y0, x0, y1, x1) for x0, y0, x1, y1 in parse_boxes(row["text"], PORT.box)]
        assert [list(map(float, box)) for box in found] == [list(map(float, b)) for b in stated]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"size": {"height": 448, "width": 448}}, "size"),
        ({"image_seq_length": 256}, "image_seq_length"),
        ({"image_mean": [0.48, 0.45, 0.4]}, "image_mean"),
        ({"resample": 2}, "resample"),
        ({"do_normalize": False}, "do_normalize"),
        ({"image_processor_type": "CLIPImageProcessor"}, "CLIPImageProcessor"),
    ],
)
def test_settings_that_it_cannot_honour_are_refused(pair, change, named):
    path = pair.folder / "preprocessor_config.json"
    other = pair.folder / "processor_config.json"
    try:
        path.write_text(json.dumps(PREPROCESSOR | change))
        with pytest.raises(UserError, match=named):
            PORT.processor(pair.folder, pair.config)
        path.unlink()
        other.write_text(json.dumps({"image_processor": PREPROCESSOR | change}))
        with pytest.raises(UserError, match=named):
            PORT.processor(pair.folder, pair.config)
    finally:
        other.unlink(missing_ok=True)
        path.write_text(json.dumps(PREPROCESSOR))


@pytest.mark.parametrize("token", ["<image>", "<loc0000>"])
def test_tokenizer_of_another_model_is_refused(pair, tmp_path, token):
    for file in pair.folder.glob("*.json"):
        text = file.read_text()
        if file.name.startswith("tokenizer"):
            text = text.replace(token, "<another>")
        (tmp_path / file.name).write_text(text)
    with pytest.raises(UserError, match=token):
        PORT.processor(tmp_path, pair.config)


def renamed(tensors, layout, folder):
    """The tensors that transformers wrote, in a layout's names."""
    root = "model." if layout.startswith("in_memory") else ""
    tower = "vision_tower." if layout in {"saved", "in_memory"} else "vision_tower.vision_model."
    language = "language_model." if root else "language_model.model."
    out = {}
    for name, value in tensors.items():
        new = name.replace("vision_tower.", tower, 1) if name.startswith("vision_") else name
        out[root + new.replace("language_model.model.", language)] = value
    folder.mkdir()
    save_file(out, folder / "model.safetensors", metadata={"format": "pt"})
    return out


@pytest.mark.parametrize("layout", ["published", "saved", "in_memory", "in_memory_4"])
def test_a_copy_of_the_embeddings_as_head_changes_nothing(pair, tmp_path, layout):
    tensors = load_file(pair.folder / "model.safetensors")
    names = renamed(tensors, layout, tmp_path / "other")
    prefix = "" if layout.startswith("in_memory") else "language_model."
    names[f"{prefix}lm_head.weight"] = tensors["language_model.model.embed_tokens.weight"].copy()
    save_file(names, tmp_path / "other/model.safetensors", metadata={"format": "pt"})
    for file in pair.folder.glob("*.json"):
        (tmp_path / "other" / file.name).write_bytes(file.read_bytes())
    assert plan_folder(tmp_path / "other").layout == layout
    model = load_model(tmp_path / "other")
    assert model.config == pair.config
    ours = flatten(model.params)
    theirs = flatten(jax.tree.map(np.asarray, pair.params))
    assert set(ours) == set(theirs)
    for path, leaf in ours.items():
        np.testing.assert_array_equal(np.asarray(leaf), theirs[path], err_msg=path)
