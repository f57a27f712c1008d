"""Boxes are never invented, and no text throws or takes more than linear time."""

# ruff: noqa: RUF001 - such characters are in the texts that are read

import json
import math
import re
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from model_ports.box_format import BoxFormat
from vrh_jax.answers import box_format, parse_box, parse_boxes, read_box
from vrh_jax.answers.clean import final_answer

REAL = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "data" / "model_outputs.jsonl")
    .read_text(encoding="utf-8")
    .splitlines()
]
MODELS = ("qwen2.5-vl-7b", "magma-8b", "glm-4.6v-flash", "deepseek-vl2-small", "paligemma2-10b")
PIECES = st.sampled_from(
    [
        *"[](){},;:<>'\"*\\$ \n",
        *"1 20 300 -4 .5 1e9 x1 é (1,2) <12> <loc0012> ```json \\boxed{ x1: y2= width".split(),
        *"<think> </think> <answer> </answer> <|box_start|> <|det|> top-left bottom-right".split(),
        *('"bbox_2d": ', "assistant\n", "9" * 50, "Final answer", "and", "point", "，", "３"),
    ]
)


def _numbers(text, loc):
    pattern = r"<loc(\d{4})>" if loc else r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
    return [float(n) for n in re.findall(pattern, text, re.ASCII)]


def _stated(text, box, loc=False):
    """Whether the numbers stand in the text: together in order, or each as a named side."""
    found = _numbers(final_answer(text), loc)
    a, b, c, d = box
    order = [b, a, d, c] if loc else [a, b, c, d]
    if any(found[i : i + 4] == order for i in range(len(found) - 3)):
        return True
    named = len(re.findall(r"\w[\"'`*]*\s*[:=]", text)) >= 4 or re.search(
        "left|左上|x_?[01]", text, re.IGNORECASE
    )
    sums = {x + y for x in found for y in found} if len(found) < 200 else set()
    return bool(named) and not loc and set(box) <= set(found) | sums


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(), st.lists(PIECES, max_size=40).map("".join)))
@example("[" * 50 + "1,2,3,4")
@example("x1: 1, y1: 2, x2: 3, y2: 4")
def test_any_text(text):
    for model in MODELS:
        for box in parse_boxes(text, model):
            assert all(map(math.isfinite, box))
            assert _stated(text, box, model.startswith("pali"))
        found, why = read_box(text, box_format(model), (64, 48), (56, 56))
        assert (found is None) == (why in ("parse_failure", "invalid_box"))
        if found is not None:
            assert 0 <= found[0] < found[2] <= 64
            assert 0 <= found[1] < found[3] <= 48


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(REAL), st.data())
def test_mutated_real_answers(row, data):
    text = row["text"]
    for _ in range(data.draw(st.integers(1, 4))):
        i = data.draw(st.integers(0, len(text)))
        j = data.draw(st.integers(i, min(len(text), i + 20)))
        text = text[:i] + data.draw(PIECES) + text[j:]
    loc = "y1 x1" in (row["coord"] or "")
    for box in parse_boxes(text, row["model"]):
        assert _stated(text, box, loc)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(REAL), st.data())
def test_a_cut_answer_states_no_other_box(row, data):
    """Cut anywhere, an answer has its own boxes or none."""
    text = row["text"][: data.draw(st.integers(0, len(row["text"])))]
    if re.search(r"<answer>|begin_of_box|assistant|</think", row["text"]):
        return  # the cut may take away what made earlier numbers deliberation
    known = [tuple(box) for box in parse_boxes(row["text"], row["model"])]
    for box in parse_boxes(text, row["model"]):
        assert box in known or re.search(r"<\d+>\s*$|\)\s*$", text)  # a polygon cut to a box


NAMES = st.sampled_from(
    ["x1 y1 x2 y2", "xmin ymin xmax ymax", "x_min y_min x_max y_max", "x0 y0 x1 y1", "X1 Y1 X2 Y2",
     "left top right bottom", "<x1> <y1> <x2> <y2>", "{x1} {y1} {x2} {y2}", "a1 b1 a2 b2",
     "x y w h",
     "int int int int", "? ? ? ?", "... ... ... ...", "0.xx 0.xx 0.xx 0.xx", "x₁ y₁ x₂ y₂"]
)  # fmt: skip
OPEN = st.sampled_from(["[", "[[", "(", "{", "<", "((", "<box>[[", '{"bbox_2d": [', "\\boxed{["])
PROSE = st.sampled_from(
    ["", "The format is ", "Answer: ", "Output its bbox coordinates using the format of ",
     "<answer>", "```json\n", "from 0 to 1000: ", "Between 0.0000 and 1.0000 ", "Image 640x480. "]
)  # fmt: skip
NUMBER = st.one_of(st.integers(0, 1200), st.floats(0, 1).map(lambda v: round(v, 3)))


@settings(max_examples=150, deadline=None)
@given(NAMES, OPEN, st.sampled_from([", ", ",", " ", " , "]), PROSE, PROSE)
def test_a_template_is_no_box(names, opening, comma, before, after):
    closing = "".join(
        {"[": "]", "(": ")", "{": "}", "<": ">"}.get(c, "") for c in reversed(opening)
    )
    text = before + opening + comma.join(names.split()) + closing + after
    for model in MODELS:
        assert parse_boxes(text, model) == []


PAIR = st.tuples(NUMBER, NUMBER)
POINT_FORMS = (
    "({}, {})",
    "[{}, {}]",
    "({},{})",
    '{{"x": {}, "y": {}}}',
    '{{"point_2d": [{}, {}]}}',
)


@settings(max_examples=200, deadline=None)
@given(st.lists(PAIR, min_size=1, max_size=9), st.sampled_from(POINT_FORMS), st.data())
def test_points_are_no_box(points, form, data):
    """Any number of points as a list, and single ones in prose."""
    said = [form.format(*point) for point in points]
    lists = (
        "[" + ", ".join(said) + "]",
        '{"points": [' + ",".join(said) + "]}",
        f"points: {', '.join(said)}",
        f"<point>{said[0]}</point>",
        f"click{said[0]}",
        f"It is at {said[0]}.",
        f"Between {said[0]} and {said[-1]}.",
        "\n".join(f"{i}. cat at {one}" for i, one in enumerate(said)),
        '<points x1="{}" y1="{}" x2="{}" y2="{}" alt="cats">'.format(*points[0], *points[-1]),
    )
    assert parse_boxes(data.draw(st.sampled_from(lists)), "magma-8b") == []


@settings(max_examples=200, deadline=None)
@given(st.lists(PAIR, min_size=3, max_size=9), st.data())
def test_polygons_are_no_box(points, data):
    flat = [str(n) for point in points for n in point]
    pairs = [f"({x},{y})" for x, y in points]
    brackets = [f"[{x}, {y}]" for x, y in points]
    text = data.draw(
        st.sampled_from(
            [
                f"[{', '.join(flat)}]",
                f"[[{','.join(flat)}]]",
                f"({', '.join(flat)})",
                ",".join(pairs),
                ", ".join(pairs),
                f"{', '.join(pairs[:-1])} and {pairs[-1]}",
                " -> ".join(pairs),
                f"[{', '.join(pairs)}]",
                f"[{', '.join(brackets)}]",
                f"[[{', '.join(brackets)}]]",
                f'{{"polygon": [{", ".join(brackets)}]}}',
                f'{{"segmentation": [[{", ".join(flat)}]]}}',
                f"<quad>{','.join(pairs)}</quad>",
                f"<|box_start|>{''.join(f'<{int(n)}>' for p in points for n in p)}<|box_end|>",
                "".join(f"<loc{int(n) % 1024:04d}>" for p in points for n in p),
                f'{{"polygon": [[{", ".join(flat[:4])}], [{", ".join(flat[:4])}]]}}',
            ]
        )
    )
    for model in MODELS:
        assert parse_boxes(text, model) == []


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 999), min_size=4, max_size=4), st.sampled_from("+-*/×÷"), st.data())
def test_arithmetic_is_no_box(numbers, sign, data):
    a, b, c, d = numbers
    text = data.draw(
        st.sampled_from(
            [
                f"{a} {sign} {b} = {c}",
                f"{a}{sign}{b}={c}",
                f"({a} {sign} {b}) / {c} = {d}",
                f"({a}, {b}, {c}, {d}) / 1000",
                f"[{a}, {b}, {c}, {d}] = {a}",
                f"2 * [{a}, {b}, {c}, {d}]",
                f"[{a}{sign}{b}, {b}, {c}, {d}]",
                f"[{a}, {b}, {c} {sign} {d}, {d}]",
                f"max({a}, {b}, {c}, {d})",
                f"x1 = {a} / 1000 * {b} = {c}, y1 = {d}",
                f"width = {c} - {a} = {b}, height = {d}",
                f"IoU = {a} / ({b} + {c} - {d})",
                f"{a}, {b} and {c}, {d} apples",
                f"{a}:{b}, {c}:{d}",
            ]
        )
    )
    for model in MODELS:
        assert parse_boxes(text, model) == []


@settings(max_examples=200, deadline=None)
@given(
    st.lists(NUMBER, min_size=4, max_size=4),
    st.sampled_from([
        "[{0}, {1}, {2}, {3}]", "[[{0},{1},{2},{3}]]", "({0},{1}),({2},{3})",
        '{{"bbox_2d": [{0}, {1}, {2}, {3}], "label": "2 of 3"}}',
        "<box>[[{0}, {1}, {2}, {3}]]</box>",
        "{{'y1': {1}, 'x1': {0}, 'y2': {3}, 'x2': {2}}}",
        '{{"ymin": {1}, "xmin": {0}, "ymax": {3}, "xmax": {2}}}',
        "top-left ({0}, {1}), bottom-right ({2}, {3})", "\\boxed{{[{0}, {1}, {2}, {3}]}}",
        "<|det|>[[{0}, {1}, {2}, {3}]]<|/det|>",
        "<|begin_of_box|>[[{0},{1},{2},{3}]]<|end_of_box|>",
    ]),
    st.sampled_from(["", "The cat is here: ", "```json\n", "<think>[1, 2, 3, 4]</think>", "1. "]),
    st.sampled_from(["", ".", "\n```", "<|im_end|>", " (the second of 2)", "\n\n5 more"]),
)  # fmt: skip
def test_a_stated_box_is_read(numbers, form, before, after):
    found = parse_box(before + form.format(*numbers) + after, "magma-8b")
    assert found == tuple(map(float, numbers))


@pytest.mark.parametrize("cut", range(0, 60, 3))
def test_a_cut_list_is_no_box(cut):
    text = '```json\n[{"bbox_2d": [135, 114, 1016, 672], "label": "cat"}]'
    expected = (135, 114, 1016, 672) if "]" in text[:cut] else None
    assert parse_box(text[:cut], "qwen2.5-vl-7b") == expected


HOSTILE = [
    *"[ ( < { ' * \\ 9 1. $".split(), " ", "\n", "[1,", "(1,2),", "(1,2) and ", "<1>", "<|", "- ",
    "<think>", "</think>", "<answer>", "assistant\n", "<loc0001>", "box ", "bbox: 1, ", "x1=1, ",
    "top-left ", "top-left (1,2) ", "coordinates ", "\\boxed{", "Answer:\n", "[1,2,3,4]", "1 2 3 ",
    "[1,2],[", "point: [1,2,3,4],", "<point ", "Final answer ", "width: ",
]  # fmt: skip


@pytest.mark.parametrize("piece", HOSTILE)
def test_time_is_linear(piece):
    """100,000 characters take about ten times as long as 10,000; a square would take a hundred."""

    def seconds(size):
        text = (piece * size)[:size]
        started = time.process_time()
        parse_boxes(text, "qwen2.5-vl-7b")
        parse_boxes(text, "paligemma2-10b")
        return time.process_time() - started

    short = min(seconds(10_000) for _ in range(3))
    long = min(seconds(100_000) for _ in range(2))
    assert long < max(40 * short, 0.2)


def test_a_long_list_keeps_its_key():
    """A polygon longer than any window of surroundings is still a polygon."""
    many = ", ".join("[1, 2, 3, 4]" for _ in range(200))
    assert parse_boxes(f'{{"polygon": [{many}], "bbox": [5, 6, 7, 8]}}', "magma") == [(5, 6, 7, 8)]
    assert len(parse_boxes(f'{{"bboxes": [{many}]}}', "magma")) == 200


def test_formats_are_told_apart_by_their_template():
    loc = BoxFormat(
        "norm1024", "<loc{y0:04d}><loc{x0:04d}><loc{y1:04d}><loc{x1:04d}>", y_first=True
    )
    text = "<loc0001><loc0002><loc0003><loc0004> [5, 6, 7, 8]"
    assert parse_box(text, loc) == (2, 1, 4, 3)
    assert parse_box(text, BoxFormat("norm1000", "[{x0}]")) == (5, 6, 7, 8)
