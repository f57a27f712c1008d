"""Prompts, templates, answers and settings files of InternVL checkpoints."""

import dataclasses
import json

import numpy as np
import pytest
from PIL import Image
from support.internlm2_tokenizer import slow_ids, write_internlm2_tokenizer
from support.internvl import HF_TEMPLATE, HUB_TEMPLATE, TEXT_TEMPLATE, write_tokenizer
from support.parity import textured_image
from transformers import AutoTokenizer, ProcessorMixin
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.internvl.processing_internvl import InternVLProcessor

from model_ports.catalogue import published_config
from model_ports.errors import UserError
from model_ports.images.resize import IMAGENET_MEAN, IMAGENET_STD
from model_ports.port import with_options
from model_ports.vlms.internvl import PORT, REMOTE_CHAT_SYSTEM, THINKING_SYSTEM

CLIP = {"image_processor_type": "CLIPImageProcessor", "image_mean": [0.5] * 3, "size": 448}


def make_folder(folder, *, file_format="internvl3-8b-hf", template=HF_TEMPLATE, files=()):
    """A checkpoint folder without weights, with 84-pixel tiles, and its config."""
    ids = write_tokenizer(folder, template)
    raw = published_config(file_format)
    if file_format.endswith("-hf"):
        raw |= {"image_token_id": ids["<IMG_CONTEXT>"], "image_seq_length": 9}
    else:
        raw |= {"force_image_size": 84, "max_dynamic_patch": 6}
    raw["vision_config"]["image_size"] = 84
    (folder / "config.json").write_text(json.dumps(raw))
    for name, content in dict(files).items():
        (folder / name).write_text(json.dumps(content))
    return PORT.read_config(raw)


def make(folder, **options):
    return PORT.processor(folder, make_folder(folder, **options))


def text_of(processor, prompt):
    return processor.tokenizer.decode(prompt.tokens)


def reference_processor(folder, monkeypatch):
    """transformers' own processor; it refuses to be built without torchvision otherwise."""
    monkeypatch.setattr(
        ProcessorMixin, "check_argument_for_proper_class", lambda self, name, arg: type(arg)
    )
    tokenizer = AutoTokenizer.from_pretrained(
        folder,
        extra_special_tokens={
            "context_image_token": "<IMG_CONTEXT>",
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "video_token": "<video>",
        },
    )
    images = GotOcr2ImageProcessorPil(
        size={"height": 84, "width": 84},
        max_patches=12,
        image_mean=list(IMAGENET_MEAN),
        image_std=list(IMAGENET_STD),
    )
    template = tokenizer.chat_template
    return InternVLProcessor(images, tokenizer, None, image_seq_length=9, chat_template=template)


@pytest.mark.parametrize("image_first", [True, False])
@pytest.mark.parametrize("sizes", [[(250, 170)], [(60, 60)], [(90, 300), (200, 90), (84, 84)], []])
def test_equal_to_the_reference_processor(tmp_path, monkeypatch, sizes, image_first):
    processor = make(tmp_path)
    reference = reference_processor(tmp_path, monkeypatch)
    images = [textured_image(*size, seed=i) for i, size in enumerate(sizes)]
    question = "Where is <ref>the red square</ref>?"
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
    if images:
        pixels = np.stack(expected["pixel_values"])
        np.testing.assert_allclose(ours.images["tiles"], pixels, rtol=0, atol=1e-5)
        context = processor.tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>")
        np.testing.assert_array_equal(ours.grid.slot, np.flatnonzero(ours.tokens == context))
        np.testing.assert_array_equal(ours.visual_index[ours.grid.slot], np.arange(len(ours.grid)))
        assert (np.delete(ours.visual_index, ours.grid.slot) == -1).all()
        assert np.bincount(ours.grid.image).sum() == 9 * len(pixels)
        assert sorted(set(ours.grid.image)) == list(range(len(images)))
    else:
        assert ours.images == {}
        assert len(ours.grid) == 0


TURN = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
BLOCK = "<img>" + "<IMG_CONTEXT>" * 9 + "</img>\n"


END = "{{ '<|im_end|>\n' }}{% endfor %}{{ '<|im_start|>assistant\n' }}"
USER = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
# Prints a list as it is, which must not be taken for a rendered question.
PRINTING_TEMPLATE = f"{USER}{{{{ m.content }}}}{END}"
LIST_TEMPLATE = (
    f"{USER}{{% for c in m.content %}}{{% if c.type == 'image' %}}{{{{ '<image>\n' }}}}"
    f"{{% else %}}{{{{ c.text }}}}{{% endif %}}{{% endfor %}}{END}"
)


@pytest.mark.parametrize(
    ("template", "before"),
    [
        (HF_TEMPLATE, ""),
        (HUB_TEMPLATE, ""),
        (TEXT_TEMPLATE, "<|im_start|>system\nYou help.<|im_end|>\n"),
        (PRINTING_TEMPLATE, ""),
        (LIST_TEMPLATE, ""),
        (None, ""),
    ],
)
@pytest.mark.parametrize("file_format", ["internvl3-8b", "internvl3-8b-hf"])
def test_templates(tmp_path, template, before, file_format):
    processor = make(tmp_path, template=template, file_format=file_format)
    image = textured_image(60, 60, 0)
    first = processor.prepare("What is it?", [image])
    assert text_of(processor, first) == before + TURN.format(f"{BLOCK}What is it?")
    last = processor.prepare("What is it?", [image], image_first=False)
    assert text_of(processor, last) == before + TURN.format(f"What is it?{BLOCK}")
    none = processor.prepare("What is it?")
    assert text_of(processor, none) == before + TURN.format("What is it?")
    assert none.text == before + TURN.format("What is it?")


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("chat", REMOTE_CHAT_SYSTEM),
        (REMOTE_CHAT_SYSTEM, REMOTE_CHAT_SYSTEM),
        ("thinking", THINKING_SYSTEM),
        ("Answer briefly.", "Answer briefly."),
    ],
)
def test_system_turn_is_an_option(tmp_path, option, text):
    processor = make(tmp_path)
    assert "system" not in processor.prepare("Hi").text
    prompt = with_options(processor, {"system": option}).prepare("Hi")
    assert prompt.text == f"<|im_start|>system\n{text}<|im_end|>\n" + TURN.format("Hi")
    assert REMOTE_CHAT_SYSTEM.startswith("你是书生·万象")
    assert "<think> and </think>" in THINKING_SYSTEM


def test_number_of_tiles_is_an_option(tmp_path):
    processor = make(tmp_path)
    image = textured_image(250, 150, 0)
    assert len(processor.prepare("Hi", [image]).grid) == 7 * 9
    fewer = with_options(processor, {"max_tiles": 2})
    assert len(fewer.prepare("Hi", [image]).grid) == 3 * 9
    assert fewer.resized((250, 150)) == (168, 84)
    with pytest.raises(UserError, match="max_tiles = 0"):
        with_options(processor, {"max_tiles": 0})
    with pytest.raises(UserError, match="thinking"):
        with_options(processor, {"thinking": True})


@pytest.mark.parametrize("system", [None, "chat"])
def test_prompt_of_internvl25(tmp_path, system):
    """BOS, the InternLM2 template, and the ids of the published slow tokenizer."""
    config = make_folder(tmp_path, file_format="internvl2.5-8b")
    (tmp_path / "tokenizer.json").unlink()
    ids = write_internlm2_tokenizer(tmp_path)
    processor = PORT.processor(tmp_path, config)
    processor = with_options(processor, {"system": system} if system else {})
    question = "Please provide the bounding box coordinate of <ref>the red square</ref>"
    prompt = processor.prepare(question, [textured_image(60, 60, 0)])
    turn = f"<|im_start|>system\n{REMOTE_CHAT_SYSTEM}<|im_end|>\n" if system else ""
    text = f"<s>{turn}{TURN.format(BLOCK + question)}"
    assert prompt.tokens.tolist() == slow_ids(tmp_path, ids, text.removeprefix("<s>"))
    assert prompt.tokens.tolist().count(1) == 1
    assert text_of(processor, prompt) == text
    np.testing.assert_array_equal(
        prompt.grid.slot, np.flatnonzero(prompt.tokens == ids["<IMG_CONTEXT>"])
    )
    assert processor.eos_ids == (2, ids["<|im_end|>"])
    answer = "<ref>the red square</ref><box>[[12, 3, 456, 1000]]</box>"
    printed = [*slow_ids(tmp_path, ids, answer, bos=False), ids["<|im_end|>"], -1]
    assert processor.decode(printed) == answer


@pytest.mark.parametrize("word", ["<image>", "<IMG_CONTEXT>", "<img>"])
def test_text_with_an_image_placeholder_is_refused(tmp_path, word):
    processor = make(tmp_path)
    with pytest.raises(UserError, match=word):
        processor.prepare(f"What does {word} mean?", [textured_image(60, 60, 0)])
    if word == "<IMG_CONTEXT>":  # the others are no token of an image
        with pytest.raises(UserError, match="placeholder"):
            processor.prepare(f"What does {word} mean?")
    else:
        assert word in processor.prepare(f"What does {word} mean?").text


def test_system_turn_of_a_template_that_prints_it_as_it_is(tmp_path):
    """Its text, not the list of parts that the same template wants for the user's turn."""
    user = "{% for c in messages[-1].content %}{{ c.text or '<image>' }}{% endfor %}"
    processor = make(tmp_path, template="{{ messages[0].content }}|" + user)
    prompt = with_options(processor, {"system": "You help."}).prepare(
        "Hi", [textured_image(60, 60, 0)]
    )
    assert prompt.text == "You help.|<img><IMG_CONTEXT></img>Hi"


def test_template_that_loses_images_is_refused(tmp_path):
    with pytest.raises(UserError, match="chat template"):
        make(tmp_path, template="{{ 'fixed' }}")


@pytest.mark.parametrize("nested", [False, True])
def test_settings_and_template_are_taken_from_where_transformers_takes_them(tmp_path, nested):
    """chat_template.json before the tokenizer's, processor_config.json before the older file."""
    template = "{% for m in messages %}Ask: {% for c in m.content %}{{ c.text or '<IMG_CONTEXT>' }}"
    files = {
        "chat_template.json": {"chat_template": template + "{% endfor %}{% endfor %}"},
        "preprocessor_config.json": {"max_patches": 3},
    }
    if nested:
        files["processor_config.json"] = {"image_processor": {"max_patches": 5}}
    processor = make(tmp_path, files=files)
    assert processor.crops.max_tiles == (5 if nested else 3)
    prompt = processor.prepare("What?", [textured_image(60, 60, 0)])
    assert prompt.text == "Ask: <img><IMG_CONTEXT></img>What?"


def test_unreadable_image_is_refused(tmp_path):
    processor = make(tmp_path)
    with pytest.raises(UserError):
        processor.prepare("What?", [Image.new("RGB", (0, 5))])


def test_grid_rectangles_follow_the_stored_image(tmp_path):
    """The same scene stored at another size covers the same tokens with a scaled box."""
    processor = make(tmp_path)
    small = processor.prepare("x", [textured_image(300, 150, 0)])
    large = processor.prepare("x", [textured_image(600, 300, 0)])
    assert processor.resized((300, 150)) == processor.resized((600, 300)) == (336, 168)
    np.testing.assert_allclose(large.grid.rect, 2 * small.grid.rect)
    a = small.grid.cover((30, 20, 61, 45))
    np.testing.assert_array_equal(a, large.grid.cover((60, 40, 122, 90)))
    assert 0 < a.sum() < len(small.grid)


def test_remote_settings_ignore_the_clip_processor(tmp_path):
    processor = make(tmp_path, file_format="internvl3-8b", files={"preprocessor_config.json": CLIP})
    assert (processor.crops.side, processor.crops.max_tiles) == (84, 6)


GOT = {
    "image_processor_type": "GotOcr2ImageProcessorFast", "crop_to_patches": False,
    "size": {"height": 84, "width": 84}, "image_mean": list(IMAGENET_MEAN),
    "image_std": list(IMAGENET_STD), "max_patches": 4, "min_patches": 2, "resample": 3,
}  # fmt: skip


@pytest.mark.parametrize(
    "files",
    [{"preprocessor_config.json": GOT}, {"processor_config.json": {"image_processor": GOT}}],
)
def test_hf_settings_are_read(tmp_path, files):
    tiling = make(tmp_path, files=files).crops
    assert (tiling.min_tiles, tiling.max_tiles, tiling.thumbnail) == (2, 4, True)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"image_mean": [0.5, 0.5, 0.5]}, "image_mean"),
        ({"size": {"height": 448, "width": 448}}, "size"),
        ({"resample": 2}, "resample"),
        ({"do_normalize": False}, "do_normalize"),
        ({"max_patches": 0}, "max_patches"),
        (CLIP, "CLIPImageProcessor"),
    ],
)
def test_hf_settings_that_it_cannot_honour_are_refused(tmp_path, change, named):
    config = make_folder(tmp_path, files={"preprocessor_config.json": GOT | change})
    with pytest.raises(UserError, match=named):
        PORT.processor(tmp_path, config)


def test_tokenizer_of_another_model_is_refused(tmp_path):
    config = make_folder(tmp_path)
    other = dataclasses.replace(config, image_token_id=7)
    with pytest.raises(UserError, match="image token is 7"):
        PORT.processor(tmp_path, other)
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    tokenizer["added_tokens"] = [t for t in tokenizer["added_tokens"] if t["content"] != "<img>"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(UserError, match="<img>"):
        PORT.processor(tmp_path, config)


def test_tokenizer_files_of_the_original_repositories(tmp_path):
    """vocab.json and merges.txt, without a tokenizer.json, give the same tokens."""
    whole = make(tmp_path, file_format="internvl3-8b", template=HUB_TEMPLATE)
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").unlink()
    added = {t["content"]: t["id"] for t in tokenizer["added_tokens"]}
    merges = "\n".join(" ".join(pair) for pair in tokenizer["model"]["merges"])
    (tmp_path / "vocab.json").write_text(json.dumps(tokenizer["model"]["vocab"]))
    (tmp_path / "merges.txt").write_text(f"#version: 0.2\n{merges}\n")
    (tmp_path / "added_tokens.json").write_text(json.dumps(added))
    settings = {
        "tokenizer_class": "Qwen2Tokenizer", "chat_template": HUB_TEMPLATE, "bos_token": None,
        "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None,
        "added_tokens_decoder": {
            str(t.pop("id")): t for t in map(dict, tokenizer["added_tokens"])
        },
    }  # fmt: skip
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    raw = json.loads((tmp_path / "config.json").read_text())
    split = PORT.processor(tmp_path, PORT.read_config(raw))
    image = textured_image(250, 170, 0)
    question = "Locate <ref>the red square</ref>, 12 times"
    ours, expected = split.prepare(question, [image]), whole.prepare(question, [image])
    np.testing.assert_array_equal(ours.tokens, expected.tokens)
    assert split.eos_ids == whole.eos_ids


def test_tokenizer_larger_than_the_embeddings_is_refused(tmp_path):
    """But for ``<video>``, which the -hf tokenizers have on top of the table."""
    config = make_folder(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    table = dataclasses.replace(config.decoder, vocab=len(tokenizer))
    exact = dataclasses.replace(config, decoder=table)
    tokenizer.add_tokens(["<video>"], special_tokens=True)
    tokenizer.save_pretrained(tmp_path)
    assert PORT.processor(tmp_path, exact).eos_ids
    tokenizer.add_tokens(["<other>"], special_tokens=True)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="different checkpoints"):
        PORT.processor(tmp_path, exact)


def test_answers_keep_box_tokens_and_lose_end_tokens(tmp_path):
    files = {"generation_config.json": {"eos_token_id": [0]}}
    processor = make(tmp_path, files=files)
    vocabulary = processor.tokenizer.get_vocab()
    assert vocabulary["<|im_end|>"] in processor.eos_ids
    assert 0 in processor.eos_ids
    answer = PORT.box.template.format(label="red square", x0=12, y0=3, x1=456, y1=1000)
    assert answer == "<ref>red square</ref><box>[[12, 3, 456, 1000]]</box>"
    ids = processor.tokenizer(answer)["input_ids"]
    assert processor.decode([*ids, vocabulary["<|im_end|>"], -1]) == answer
    assert PORT.box.scale((640, 480), processor.resized((640, 480))) == (0.64, 0.48)
