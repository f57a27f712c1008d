"""Prompts, templates, boxes and settings files of LLaVA-NeXT checkpoints."""

import dataclasses
import json

import numpy as np
import pytest
from support.llava import (
    BEGIN,
    EOT,
    HF_TEMPLATE,
    IMAGE,
    LLAMA3,
    LLAMA3_TEMPLATE,
    PINPOINTS,
    SIDE,
    SPECIAL,
    image_processor,
    preprocessor_json,
    write_tokenizer,
)
from support.parity import textured_image
from transformers import AutoTokenizer, LlavaNextProcessor, ProcessorMixin

from model_ports.catalogue import published_config
from model_ports.errors import UserError
from model_ports.port import with_options
from model_ports.vlms.llava_next import ORIGINAL_SYSTEM, PORT, config

NAMES = ("llava-next-llama3-8b-hf", "llava-next-llama3-8b")
USER = "<|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|>"
ASSISTANT = "<|start_header_id|>assistant<|end_header_id|>\n\n"


def make_config(folder, *, name=NAMES[0], template=HF_TEMPLATE, special=SPECIAL, files=()):
    """A checkpoint folder without weights, with 56-pixel crops, and its config."""
    ids = write_tokenizer(folder, template, special)
    raw = published_config(name)
    raw["image_grid_pinpoints"] = PINPOINTS
    if name == NAMES[0]:
        raw |= {"image_token_index": ids[IMAGE]}
        raw["vision_config"]["image_size"] = SIDE
    (folder / "config.json").write_text(json.dumps(raw))
    for file, content in dict(files).items():
        (folder / file).write_text(json.dumps(content))
    return PORT.read_config(raw)


def make(folder, **options):
    return PORT.processor(folder, make_config(folder, **options))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("llava_processor")


@pytest.fixture(scope="module")
def processor(folder):
    return make(folder, files={"preprocessor_config.json": preprocessor_json()})


@pytest.fixture
def original(tmp_path, monkeypatch, processor):
    """Of a folder in the original format: no token for images, Llama 3's own template."""
    tower = dataclasses.replace(config.TOWERS["clip-vit-large-patch14-336"], side=SIDE // 14)
    monkeypatch.setattr(config, "TOWERS", {"clip-vit-large-patch14-336": tower})
    return make(tmp_path, name=NAMES[1], template=LLAMA3_TEMPLATE, special=LLAMA3)


@pytest.mark.parametrize("image_first", [True, False])
@pytest.mark.parametrize("sizes", [[(250, 170)], [(40, 40)], [(90, 300), (200, 90), (84, 84)], []])
def test_equal_to_the_reference_processor(folder, processor, monkeypatch, sizes, image_first):
    monkeypatch.setattr(
        ProcessorMixin, "check_argument_for_proper_class", lambda self, name, arg: type(arg)
    )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    reference = LlavaNextProcessor(
        image_processor(), tokenizer, patch_size=14, vision_feature_select_strategy="default",
        chat_template=tokenizer.chat_template, num_additional_image_tokens=1,
    )  # fmt: skip
    images = [textured_image(*size, seed=i) for i, size in enumerate(sizes)]
    question = "Where is the red square, 0.123?"
    ours = processor.prepare(question, images, image_first=image_first)
    parts = [{"type": "image"}] * len(images)
    words = [{"type": "text", "text": question}]
    content = parts + words if image_first else words + parts
    text = reference.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True
    )
    kwargs = {"images": images} if images else {}
    expected = reference(text=[text], return_tensors="np", **kwargs)
    np.testing.assert_array_equal(ours.tokens, expected["input_ids"][0])
    np.testing.assert_array_equal(ours.positions[0], np.arange(len(ours)))
    if not images:
        assert ours.images == {}
        assert len(ours.grid) == 0
        return
    crops = [p[: 1 + w * h // SIDE**2] for p, (w, h) in zip(
        expected["pixel_values"], map(processor.resized, sizes), strict=True)]  # fmt: skip
    np.testing.assert_allclose(ours.images["crops"], np.concatenate(crops), rtol=0, atol=1e-5)
    visual = ours.tokens == processor.image_id
    np.testing.assert_array_equal(np.flatnonzero(ours.visual_index >= 0), np.flatnonzero(visual))
    np.testing.assert_array_equal(ours.visual_index[visual], np.arange(visual.sum()))
    # Newlines are features without a record; every other feature is one token of one crop.
    index = ours.images["index"]
    slots = np.flatnonzero(visual)
    np.testing.assert_array_equal(ours.grid.slot, slots[index >= 0])
    assert len(ours.grid) < len(index)
    kept = index[index >= 0]
    assert len(set(kept)) == len(kept)
    assert kept.max() < 16 * len(ours.images["crops"])
    assert sorted(set(ours.grid.image)) == list(range(len(images)))
    for number, size in enumerate(sizes):
        own = ours.grid.image == number
        assert ours.grid.rect[own][:, 2].max() >= 0.9 * size[0]
        assert own[: int(own.argmax())].sum() == 0


def test_prompt_of_the_published_template(processor):
    image = textured_image(60, 60, 0)
    prompt = processor.prepare("What is it?", [image])
    assert prompt.text == USER.format("<image>\nWhat is it?") + ASSISTANT
    begin, eot = (processor.tokenizer.convert_tokens_to_ids(t) for t in (BEGIN, EOT))
    assert (prompt.tokens == begin).sum() == 1
    assert prompt.tokens[0] == begin
    assert eot in processor.eos_ids
    none = processor.prepare("What is it?")
    assert none.text == USER.format("\nWhat is it?") + ASSISTANT
    assert processor.token_slots(none, "What").size > 0


@pytest.mark.parametrize("with_image", [True, False])
def test_original_prompts(original, processor, with_image):
    """The original's tokens are those of the -hf prompt; its own style adds the system turn,
    a second begin-of-text token and the other lineage."""
    images = [textured_image(40, 40, 0)] if with_image else []
    plain = original.prepare("What is it?", images)
    body = "<image>\nWhat is it?" if with_image else "What is it?"
    assert plain.text == BEGIN + USER.format(body) + ASSISTANT
    begin = original.tokenizer.convert_tokens_to_ids(BEGIN)
    assert (plain.tokens == begin).sum() == 1
    if with_image:
        hf = processor.prepare("What is it?", images)
        visual = plain.visual_index >= 0
        np.testing.assert_array_equal(plain.tokens[~visual], hf.tokens[hf.visual_index < 0])
        assert (plain.tokens[visual] == original.image_id).all()
        np.testing.assert_array_equal(plain.images["index"], hf.images["index"])
    style = original.like_original()
    own = style.prepare("What is it?", images)
    system = f"<|start_header_id|>system<|end_header_id|>\n\n{ORIGINAL_SYSTEM}<|eot_id|>"
    assert own.text == BEGIN + system + USER.format(body) + ASSISTANT
    assert own.tokens[:2].tolist() == [begin, begin]
    assert (own.tokens == begin).sum() == 2
    assert original.resized((40, 40)) == (112, 56)
    assert style.resized((40, 40)) == (56, 112)
    if with_image:
        assert style.prepare("x", images, image_first=False).text.endswith(
            USER.format("x\n<image>") + ASSISTANT
        )


def test_options_of_a_study(processor):
    options = {"lineage": "original", "begin": 2, "system": "You help."}
    style = with_options(processor, options)
    prompt = style.prepare("x", [textured_image(40, 40, 0)])
    assert style.resized((40, 40)) == (56, 112)
    assert prompt.tokens[0] == prompt.tokens[1] != prompt.tokens[2]
    assert "You help." in prompt.text
    assert processor.resized((40, 40)) == (112, 56)
    for bad in ({"lineage": "both"}, {"lineages": "hf"}, {"begin": "two"}):
        with pytest.raises(UserError, match=next(iter(bad))):
            with_options(processor, bad)


def test_system_turn_with_the_template_of_parts(processor):
    style = dataclasses.replace(processor, system="You help.")
    text = style.prepare("Hi", [textured_image(40, 40, 0)]).text
    assert text.startswith("<|start_header_id|>system<|end_header_id|>\n\n\nYou help.<|eot_id|>")


def test_a_template_that_loses_the_system_turn_is_refused(processor):
    user_only = HF_TEMPLATE.replace("for m in messages", "for m in messages[-1:]")
    style = dataclasses.replace(processor, system="You help.", template=user_only)
    with pytest.raises(UserError, match="system"):
        style.prepare("Hi", [textured_image(40, 40, 0)])


def test_folder_without_a_template_gets_llama3s(tmp_path):
    processor = make(tmp_path, template="")
    image = textured_image(60, 60, 0)
    text = processor.prepare(" What is it? ", [image]).text
    assert text == USER.format("<image>\n What is it?") + ASSISTANT


def test_template_beside_the_tokenizer(tmp_path):
    other = {"chat_template": "{{ '<image>' }}{{ messages[0].content[-1].text }}"}
    processor = make(tmp_path, files={"chat_template.json": other})
    assert processor.prepare("Hi", [textured_image(40, 40, 0)]).text == "<image>Hi"
    (tmp_path / "chat_template.json").write_text("[]")
    with pytest.raises(UserError, match=r"chat_template\.json"):
        PORT.processor(tmp_path, make_config(tmp_path))


def test_bad_questions_and_images_are_refused(processor):
    image = textured_image(40, 40, 0)
    with pytest.raises(UserError, match="<image>"):
        processor.prepare("What does <image> mean?", [image])
    broken = dataclasses.replace(processor, template="{{ 'fixed' }}")
    with pytest.raises(UserError, match="chat template"):
        broken.prepare("What?", [image])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"image_mean": [0.5, 0.5, 0.5]}, "image_mean"),
        ({"size": {"shortest_edge": 336}}, "size"),
        ({"crop_size": {"height": 224, "width": 224}}, "crop_size"),
        ({"resample": 2}, "resample"),
        ({"do_normalize": False}, "do_normalize"),
        ({"image_grid_pinpoints": PINPOINTS[::-1]}, "image_grid_pinpoints"),
        ({"image_grid_pinpoints": [[56, 57]]}, "image_grid_pinpoints"),
        ({"image_processor_type": "CLIPImageProcessor"}, "CLIPImageProcessor"),
    ],
)
def test_settings_that_it_cannot_honour_are_refused(tmp_path, change, named):
    files = {"preprocessor_config.json": preprocessor_json() | change}
    with pytest.raises(UserError, match=named):
        make(tmp_path, files=files)
    (tmp_path / "preprocessor_config.json").unlink()
    nested = {"processor_config.json": {"image_processor": preprocessor_json() | change}}
    with pytest.raises(UserError, match=named):
        make(tmp_path, files=nested)


def test_tokenizer_of_another_model_is_refused(tmp_path):
    read = make_config(tmp_path)
    with pytest.raises(UserError, match="image token is 7"):
        PORT.processor(tmp_path, dataclasses.replace(read, image_token_id=7))
    small = dataclasses.replace(read.decoder, vocab=100)
    with pytest.raises(UserError, match="different checkpoints"):
        PORT.processor(tmp_path, dataclasses.replace(read, decoder=small))


def test_answers_and_boxes(processor):
    end = processor.tokenizer.convert_tokens_to_ids(EOT)
    answer = PORT.box.template.format(x0=0.25, y0=0.1, x1=0.75, y1=0.5)
    assert answer == "[0.25, 0.1, 0.75, 0.5]"
    ids = processor.tokenizer(answer, add_special_tokens=False)["input_ids"]
    assert processor.decode([*ids, end, -1]) == answer
    box, size = (0.25, 0.1, 0.75, 0.5), (640, 480)
    assert PORT.box.pixels(box, size, processor.resized(size)) == (160, 48, 480, 240)
    padded = dataclasses.replace(PORT.box, frame="padded_square")
    assert padded.pixels(box, size, processor.resized(size)) == (160, -16, 480, 240)
