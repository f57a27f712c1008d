"""Prompts, special tokens, answers and settings files of DeepSeek-VL2."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.deepseek import BOS, CONFIG, EOS, IMAGE, LANGUAGE, PROCESSOR, SIDE, write_tokenizer
from support.key_manifest import DATA
from support.parity import textured_image

from model_ports.errors import UserError
from model_ports.images.letterbox import VIEW_SEPARATOR
from model_ports.port import with_options
from model_ports.vlms.deepseek_vl2 import PORT
from vrh_jax.answers import parse_box, parse_boxes


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("deepseek_tokenizer")
    write_tokenizer(path)
    return path


@pytest.fixture(scope="module")
def config():
    return PORT.read_config({**CONFIG, "language_config": {**LANGUAGE, "vocab_size": 400}})


@pytest.fixture(scope="module")
def processor(folder, config):
    return PORT.processor(folder, config)


def test_prompt_of_the_published_format(processor):
    image = textured_image(80, 60, 1)
    prompt = processor.prepare("<|ref|>the red square<|/ref|>.", [image])
    assert prompt.text == ("<|User|>: <image>\n<|ref|>the red square<|/ref|>.\n\n<|Assistant|>:")
    tokenizer = processor.tokenizer
    before, after = (
        tokenizer(part, add_special_tokens=False)["input_ids"] for part in prompt.text.split(IMAGE)
    )
    places = len(processor.crops.layout((80, 60)).index)
    image_id = tokenizer.convert_tokens_to_ids(IMAGE)
    bos = tokenizer.convert_tokens_to_ids(BOS)
    assert prompt.tokens.tolist() == [bos, *before, *[image_id] * places, *after]
    assert tokenizer.convert_tokens_to_ids("<|ref|>") in after
    assert np.array_equal(prompt.positions[0], np.arange(len(prompt)))
    # Separators are features, but no cells.
    index = prompt.images["index"]
    first = 1 + len(before)
    assert np.array_equal(prompt.visual_index[first : first + places], np.arange(places))
    assert np.array_equal(prompt.grid.slot, first + np.flatnonzero(index >= 0))
    assert (index == VIEW_SEPARATOR).sum() == 1


def test_text_alone_and_a_system_turn(processor):
    assert processor.prepare("How many?").text == "<|User|>: How many?\n\n<|Assistant|>:"
    talking = with_options(processor, {"system": "Be brief."})
    prompt = talking.prepare("How many?", [textured_image(40, 40, 2)])
    assert prompt.text == "Be brief.\n\n<|User|>: <image>\nHow many?\n\n<|Assistant|>:"
    with pytest.raises(UserError, match="<image>"):
        processor.prepare("an <image>", [textured_image(40, 40, 2)])


def test_more_than_two_images_are_not_cut(processor):
    images = [textured_image(150, 60, seed) for seed in range(3)]
    two, three = processor.prepare("a", images[:2]), processor.prepare("a", images)
    assert processor.crops.canvas((150, 60)) == (3 * SIDE, 2 * SIDE)
    assert len(two.images["crops"]) == 2 * (1 + 6)
    assert len(three.images["crops"]) == 3 * 2
    assert processor.crops.cropping  # of the next prompt
    assert set(three.grid.image) == {0, 1, 2}
    assert set(three.grid.view) == {0, 1}
    assert processor.resized((150, 60)) == (3 * SIDE, 2 * SIDE)


def test_answers_keep_their_special_tokens(processor):
    answer = PORT.box.template.format(label="the cat", x0=12, y0=0, x1=999, y1=500)
    assert answer == "<|ref|>the cat<|/ref|><|det|>[[12, 0, 999, 500]]<|/det|>"
    ids = processor.tokenizer(answer, add_special_tokens=False)["input_ids"]
    end = processor.tokenizer.convert_tokens_to_ids(EOS)
    assert processor.eos_ids == (end,)
    assert processor.decode([*ids, end]) == answer
    assert parse_box(answer, PORT.box) == (12, 0, 999, 500)
    box = PORT.box.pixels((0, 0, 999, 999), (640, 480), processor.resized((640, 480)))
    assert box == pytest.approx((0, 0, 640, 480))


def test_published_answers():
    rows = [json.loads(row) for row in (DATA / "model_outputs.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["model"] == "DeepSeek-VL2"]
    assert len(rows) > 4
    for row in rows:
        found = [list(map(float, box)) for box in parse_boxes(row["text"], PORT.box)]
        assert found == [list(map(float, box)) for box in row["expected_boxes"]], row["text"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"candidate_resolutions": [[44, 44]]}, "candidate_resolutions"),
        ({"downsample_ratio": 4}, "downsample_ratio"),
        ({"image_mean": [0.48, 0.45, 0.4]}, "image_mean"),
        ({"normalize": False}, "normalize"),
        ({"sft_format": "plain"}, "sft_format"),
    ],
)
def test_settings_that_it_cannot_honour_are_refused(folder, config, tmp_path, change, named):
    copy(folder, tmp_path)
    (tmp_path / "processor_config.json").write_text(json.dumps(PROCESSOR | change))
    with pytest.raises(UserError, match=named):
        PORT.processor(tmp_path, config)


def test_tokenizer_of_another_model_is_refused(folder, config, tmp_path):
    copy(folder, tmp_path)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"bos_token": EOS}))
    with pytest.raises(UserError, match=f"bos_token is '{EOS}'"):
        PORT.processor(tmp_path, config)


def test_special_tokens_that_a_tokenizer_lacks_are_added(folder, processor, config, tmp_path):
    """In the published order, so that they get the published ids."""
    copy(folder, tmp_path)
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    first = next(i for i, t in enumerate(content["added_tokens"]) if t["content"] == IMAGE)
    assert len(content["added_tokens"]) - first == 8
    del content["added_tokens"][first:]
    path.write_text(json.dumps(content), encoding="utf-8")
    found = PORT.processor(tmp_path, config)
    assert found.image_id == processor.image_id
    text = "<|ref|>it<|/ref|>."
    images = [textured_image(50, 50, 1)]
    ours, theirs = (p.prepare(text, images).tokens for p in (found, processor))
    assert np.array_equal(ours, theirs)
    few = {**LANGUAGE, "vocab_size": processor.image_id + 3}
    with pytest.raises(UserError, match="embeddings"):
        PORT.processor(tmp_path, PORT.read_config({**CONFIG, "language_config": few}))


def test_class_that_the_published_tokenizer_names(folder, processor, config, tmp_path):
    """Llama's, whose own splitting and spaces must not replace those of tokenizer.json."""
    copy(folder, tmp_path)
    path = tmp_path / "tokenizer_config.json"
    named = json.loads(path.read_text()) | {"tokenizer_class": "LlamaTokenizerFast"}
    path.write_text(json.dumps(named))
    found, text = PORT.processor(tmp_path, config), "Locate the red square, 012 a b"
    ours, theirs = (p.prepare(text).tokens for p in (found, processor))
    assert np.array_equal(ours, theirs)
    assert found.decode(theirs[1:]) == processor.prepare(text).text


def copy(source: Path, target: Path) -> None:
    for file in source.glob("*.json"):
        (target / file.name).write_bytes(file.read_bytes())
