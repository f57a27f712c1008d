"""Prompts, boxes and settings files of Magma checkpoints."""

import dataclasses
import json

import numpy as np
import pytest
from support.llava import BEGIN, EOT, IMAGE, LLAMA3_TEMPLATE, write_tokenizer
from support.magma import SIDE, SPECIAL, preprocessor_json, reference_crops
from support.parity import textured_image

from model_ports.catalogue import published_config
from model_ports.errors import UserError
from model_ports.port import with_options
from model_ports.vlms.magma import PORT, SYSTEM

TURN = "<|start_header_id|>{}<|end_header_id|>\n\n{}<|eot_id|>"
HEAD = BEGIN + TURN.format("system", SYSTEM)
ASSISTANT = "<|start_header_id|>assistant<|end_header_id|>\n\n"
BLOCK = "<image_start><image><image_end>"


def make_config(folder, *, template=LLAMA3_TEMPLATE, special=SPECIAL, settings=None):
    """A checkpoint folder without weights, with 64-pixel crops, and its config."""
    ids = write_tokenizer(folder, template, special)
    raw = published_config("magma-8b")
    raw |= {"image_token_index": ids.get(IMAGE, 7), "img_size": SIDE}
    raw["vision_config"]["img_size"] = SIDE
    (folder / "config.json").write_text(json.dumps(raw))
    if settings is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return PORT.read_config(raw)


def make(folder, **options):
    return PORT.processor(folder, make_config(folder, **options))


@pytest.fixture(scope="module")
def processor(tmp_path_factory):
    return make(tmp_path_factory.mktemp("magma_processor"), settings=preprocessor_json())


@pytest.mark.parametrize("sizes", [[(150, 100)], [(40, 40)], [(30, 200), (90, 80)], []])
def test_prompt_is_the_released_one(processor, sizes):
    """The model card's turns through the template, tokenized with the tokenizer's own special
    tokens, and every image token replaced by its image's rows."""
    images = [textured_image(*size, seed=i) for i, size in enumerate(sizes)]
    question = "Where is the red square, 0.123?"
    turns = [
        {"role": "system", "content": "You are agent that can see, talk and act."},
        {"role": "user", "content": f"{BLOCK}\n" * len(images) + question},
    ]
    tokenizer = processor.tokenizer
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    ours = processor.prepare(question, images)
    assert ours.text == text
    assert text == HEAD + TURN.format("user", f"{BLOCK}\n" * len(images) + question) + ASSISTANT
    expected, image_id = [], tokenizer.convert_tokens_to_ids(IMAGE)
    counts = iter(images)
    for token in tokenizer(text)["input_ids"]:
        if token == image_id:
            _, (columns, rows) = reference_crops(next(counts), SIDE)
            expected += [image_id] * (2 * rows * (2 * columns + 1))
        else:
            expected.append(token)
    assert ours.tokens.tolist() == expected
    begin = tokenizer.convert_tokens_to_ids(BEGIN)
    assert expected[:2] == [begin, begin]  # the template's and the tokenizer's
    np.testing.assert_array_equal(ours.positions[0], np.arange(len(ours)))
    visual = ours.tokens == image_id
    np.testing.assert_array_equal(ours.visual_index[visual], np.arange(visual.sum()))
    assert (ours.visual_index[~visual] == -1).all()
    if not images:
        assert ours.images == {}
        assert len(ours.grid) == 0
        return
    crops = np.concatenate([reference_crops(image, SIDE)[0] for image in images])
    np.testing.assert_allclose(ours.images["crops"], crops, rtol=0, atol=1e-5)
    index = ours.images["index"]
    # Separators are features without a record; every token of every crop has one.
    np.testing.assert_array_equal(ours.grid.slot, np.flatnonzero(visual)[index >= 0])
    assert sorted(index[index >= 0]) == list(range(4 * len(crops)))
    assert (index < 0).sum() > 0
    for number, (width, height) in enumerate(sizes):
        rect = ours.grid.rect[ours.grid.image == number]
        np.testing.assert_allclose(rect[:, 2:].max(0), (width, height))
        area = (rect[:, 2] - rect[:, 0]) * (rect[:, 3] - rect[:, 1])
        np.testing.assert_allclose(area.sum(), width * height)


def test_options(processor):
    begin = processor.tokenizer.convert_tokens_to_ids(BEGIN)
    image = textured_image(40, 40, 0)
    once = with_options(processor, {"begin": 1}).prepare("Hi", [image])
    both = processor.prepare("Hi", [image])
    np.testing.assert_array_equal(once.tokens, both.tokens[1:])
    assert (once.tokens == begin).sum() == 1
    other = with_options(processor, {"system": "You help."}).prepare("Hi", [image])
    assert other.text == (BEGIN + TURN.format("system", "You help.")
                          + TURN.format("user", f"{BLOCK}\nHi") + ASSISTANT)  # fmt: skip
    none = dataclasses.replace(processor, system=None).prepare("Hi", [image])
    assert none.text == BEGIN + TURN.format("user", f"{BLOCK}\nHi") + ASSISTANT
    last = processor.prepare("Hi", [image], image_first=False)
    assert last.text == HEAD + TURN.format("user", f"Hi\n{BLOCK}") + ASSISTANT


def test_bad_questions_and_templates_are_refused(processor, tmp_path):
    image = textured_image(40, 40, 0)
    with pytest.raises(UserError, match="<image>"):
        processor.prepare("What does <image> mean?", [image])
    broken = dataclasses.replace(processor, template="{{ messages[-1].content }}")
    with pytest.raises(UserError, match="system"):
        broken.prepare("What?", [image])
    with pytest.raises(UserError, match="chat template"):
        make(tmp_path, template="")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"image_mean": [0.5, 0.5, 0.5]}, "image_mean"),
        ({"anyres_strategy": "global"}, "anyres_strategy"),
        ({"base_img_size": 70}, "70"),
        ({"num_crops": 0}, "crop"),
        ({"num_crops": "4"}, "num_crops"),
        ({"image_processor_type": "CLIPImageProcessor"}, "CLIPImageProcessor"),
    ],
)
def test_settings_that_it_cannot_honour_are_refused(tmp_path, change, named):
    with pytest.raises(UserError, match=named):
        make(tmp_path, settings=preprocessor_json() | change)


def test_image_processor_overrules_the_config(tmp_path):
    """It is what the released code cuts by."""
    crops = make(tmp_path, settings=preprocessor_json(96) | {"num_crops": 6}).crops
    assert (crops.side, crops.tokens, crops.max_crops) == (96, 3, 6)
    (tmp_path / "preprocessor_config.json").unlink()
    crops = make(tmp_path).crops
    assert (crops.side, crops.tokens, crops.max_crops) == (SIDE, 2, 4)


def test_tokenizer_of_another_model_is_refused(tmp_path):
    read = make_config(tmp_path)
    with pytest.raises(UserError, match="image token is 7"):
        PORT.processor(tmp_path, dataclasses.replace(read, image_token_id=7))
    without = tuple(token for token in SPECIAL if token != "<image_end>")
    with pytest.raises(UserError, match="<image_end>"):
        make(tmp_path / "other", special=without)


def test_answers_and_boxes(processor):
    end = processor.tokenizer.convert_tokens_to_ids(EOT)
    assert end in processor.eos_ids
    answer = PORT.box.template.format(x0=0.25, y0=0.1, x1=0.75, y1=0.5)
    ids = processor.tokenizer(answer, add_special_tokens=False)["input_ids"]
    assert processor.decode([*ids, end, -1]) == answer == "[0.25, 0.1, 0.75, 0.5]"
    size = (640, 480)
    box = PORT.box.pixels((0.25, 0.1, 0.75, 0.5), size, processor.resized(size))
    assert box == (160, 48, 480, 240)
    assert processor.resized((80, 60)) == (2 * SIDE, SIDE)
