"""Tokenizer, chat template and substring slots of text checkpoints."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from support.parity import save_tokenizer

from model_ports.errors import UserError
from model_ports.text import TextProcessor

TEMPLATE = (
    "{% for m in messages %}<im>{{ m.role }}\n{{ m.content }}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}<im>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(path, ["<im>", "<eos>", "<pad>"], TEMPLATE, eos="<eos>", pad="<pad>")
    return path


@pytest.fixture(scope="module")
def processor(folder) -> TextProcessor:
    return TextProcessor.load(folder, 400)


def test_prompt_is_the_rendered_template(processor) -> None:
    prompt = processor.prepare("Locate the red square")
    assert prompt.text == "<im>user\nLocate the red square<eos>\n<im>assistant\n"
    turn = [{"role": "user", "content": "Locate the red square"}]
    expected = processor.tokenizer.apply_chat_template(turn, add_generation_prompt=True)
    expected = expected if isinstance(expected, list) else expected["input_ids"]
    assert list(prompt.tokens) == expected
    assert (prompt.visual_index == -1).all()
    assert len(prompt.grid) == 0


def test_plain_completion_without_a_template(folder, tmp_path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_text((folder / name).read_text())
    plain = TextProcessor.load(tmp_path, 400)
    prompt = plain.prepare("red square: ")
    assert prompt.text == "red square: "
    assert plain.decode(prompt.tokens) == "red square: "


@given(
    words=st.lists(st.text("abcdé 0123,.", min_size=1, max_size=8), min_size=3, max_size=9),
    at=st.integers(0, 8),
)
@settings(max_examples=60, deadline=None)
def test_slots_cover_exactly_the_substring(processor, words, at) -> None:
    at %= len(words)
    needle = f"[{words[at]}]"
    words = [*words[:at], needle, *words[at + 1 :]]
    prompt = processor.prepare("|".join(words))
    slots = processor.token_slots(prompt, needle)
    # Every character of the needle is in a chosen token, and no other token has one.
    assert (np.diff(slots) == 1).all()
    chosen = processor.tokenizer.decode(prompt.tokens[slots[0] : slots[-1] + 1])
    assert needle in chosen
    inner = processor.tokenizer.decode(prompt.tokens[slots[0] + 1 : slots[-1]])
    assert inner in needle


def test_slots_after_an_answer_are_those_of_the_prompt(processor) -> None:
    prompt = processor.prepare("a red square here")
    before = processor.token_slots(prompt, "red square")
    after = processor.token_slots(prompt.extend([3, 4, 5]), "red square")
    np.testing.assert_array_equal(before, after)
    assert len(before) > 1


@pytest.mark.parametrize("needle", ["blue", "", "a"])
def test_absent_or_ambiguous_needles(processor, needle) -> None:
    prompt = processor.prepare("a red square and a circle")
    with pytest.raises(UserError, match="occurs"):
        processor.token_slots(prompt, needle)


def test_prompt_of_another_tokenizer(processor) -> None:
    prompt = processor.prepare("red square")
    prompt.tokens[2] += 1
    with pytest.raises(UserError, match="another checkpoint"):
        processor.token_slots(prompt, "red")


def test_images_are_refused(processor) -> None:
    with pytest.raises(UserError, match="cannot read images"):
        processor.prepare("x", [Image.new("RGB", (4, 4))])


def test_decode_keeps_special_tokens_but_not_the_end(processor) -> None:
    tokenizer = processor.tokenizer
    im, eos = tokenizer.convert_tokens_to_ids(["<im>", "<eos>"])
    assert processor.decode([*tokenizer("a b")["input_ids"], im, eos, -1]) == "a b<im>"


def test_end_tokens_of_all_files(folder, tmp_path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_text((folder / name).read_text())
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 11}))
    loaded = TextProcessor.load(tmp_path, 400)
    assert loaded.eos_ids == tuple(sorted({7, 9, 11, loaded.tokenizer.eos_token_id}))


def test_tokenizer_that_does_not_match(folder) -> None:
    with pytest.raises(UserError, match="different checkpoints"):
        TextProcessor.load(folder, 100)


def test_missing_tokenizer(tmp_path) -> None:
    with pytest.raises(UserError, match="tokenizer cannot be read"):
        TextProcessor.load(tmp_path, 400)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", ["[]", "{", "7", "null"])
def test_broken_tokenizer_files(folder, tmp_path, name, content) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match="tokenizer cannot be read"):
        TextProcessor.load(tmp_path, 400)
