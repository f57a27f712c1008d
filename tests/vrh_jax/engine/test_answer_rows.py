"""Which answer tokens' rows are read: those after a thinking block, with digits, the first."""

import re

import pytest

from vrh_jax.answers.clean import answer_spans, strip_thoughts
from vrh_jax.config import ScoringSettings
from vrh_jax.engine.capture import _counted


class Words:
    """Tokens are indices into a list of pieces; a tag may be one piece or several."""

    def __init__(self, pieces):
        self.pieces = pieces

    def decode(self, tokens):
        return "".join(self.pieces[t] for t in tokens)


def counted(pieces, **settings):
    chosen = _counted(Words(pieces), range(len(pieces)), ScoringSettings(**settings))
    return [pieces[i] for i in chosen]


THOUGHT = ["<think>", " maybe", " [[", "1", "]]", "</think>", "\n", "\n"]
BOX = ["<|begin_of_box|>", "[[", "12", ", ", "7", "]]", "<|end_of_box|>"]


@pytest.mark.parametrize(
    "thought",
    [[], THOUGHT, ["<", "thi", "nk>", " 3", "</", "think", ">"], ["so", " 9", "</think>", " "]],
)
def test_rows_of_the_answer_only(thought):
    assert counted([*thought, *BOX]) == BOX
    assert counted([*thought, *BOX], tokens="coords") == ["12", "7"]
    assert counted([*thought, *BOX], tokens="first") == BOX[:1]
    assert counted([*thought, *BOX], span="all") == [*thought, *BOX]


def test_tags_within_a_token_and_an_empty_block():
    assert counted(["<think></think>", "\n", "A"]) == ["A"]
    assert counted(["<think>", "x", "</think>a", "b"]) == ["</think>a", "b"]


@pytest.mark.parametrize("settings", [{}, {"tokens": "first"}, {"tokens": "coords"}])
def test_a_block_that_never_closes_has_no_answer(settings):
    assert counted(["<think>", " box", " 12"], **settings) == []


def test_white_space_of_an_answer_without_thoughts_counts():
    assert counted([" ", "\n", "A"]) == [" ", "\n", "A"]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("plain", "plain"),
        ("<think>a</think>b<think>c</think>d", "bd"),
        ("a</think>b", "b"),
        ("b<think>a", "b"),
        ("<think>a<think>b</think>c</think>d", "d"),
        ("\u25c1think\u25b7a\u25c1/think\u25b7b", "b"),
    ],
)
def test_spans_are_what_is_left(text, answer):
    assert strip_thoughts(text) == answer
    for start, end in answer_spans(text):
        assert not re.search("think", text[start:end])
