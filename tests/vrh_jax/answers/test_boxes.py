"""Boxes in printed answers: real ones, broken ones, arbitrary text."""

# ruff: noqa: RUF001 - such characters are in the texts that are read

import json
import math
import os
import re
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from model_ports.errors import UserError
from model_ports.port import BoxFormat
from vrh_jax.answers import iou, parse_box, parse_boxes, read_box

DATA = Path(__file__).parents[2] / "data" / "model_outputs.jsonl"


def _rows(path):
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _x_first(row, box):
    if box is None:
        return None
    a, b, c, d = map(float, box)
    return (b, a, d, c) if "y1 x1" in (row["coord"] or "") else (a, b, c, d)


REAL = _rows(DATA)


@pytest.mark.parametrize("row", REAL, ids=range(len(REAL)))
def test_real_answers(row):
    assert parse_box(row["text"], row["model"]) == _x_first(row, row["expected_box"]), row["note"]
    expected = [_x_first(row, box) for box in row["expected_boxes"]]
    found = parse_boxes(row["text"], row["model"])
    assert found[: len(expected)] == expected
    # one answer, cut short, holds a third complete box in an incomplete object
    assert len(found) - len(expected) == (1 if "arguably the third" in row["note"] else 0)


def test_all_real_answers():
    folder = os.environ.get("VRH_REALDATA")
    if not folder:
        pytest.skip("VRH_REALDATA is unset: the folder with model_outputs.jsonl is missing")
    rows = _rows(Path(folder) / "model_outputs.jsonl")
    assert len(rows) >= len(REAL)
    wrong = [
        row["text"]
        for row in rows
        if parse_box(row["text"], row["model"]) != _x_first(row, row["expected_box"])
    ]
    assert wrong == []


BOX = (10.0, 20.0, 110.0, 120.0)


@pytest.mark.parametrize(
    "text",
    [
        "[10, 20, 110, 120]",
        "[10,20,110,120]",
        "(10, 20, 110, 120)",
        "(10,20),(110,120)",
        "((10, 20), (110, 120))",
        "cat(10,20),(110,120)",
        "<box>(10,20),(110,120)</box>",
        "<box>10 20 110 120</box>",
        "**[10, 20, 110, 120]**",
        "* [10, 20, 110, 120]",
        "- [10, 20, 110, 120]",
        "[ 10 ,\n 20.0,\t110. , 120 ]",
        '["10", "20", "110", "120"]',
        "[010, 020, 110, 120]",
        "[1e1, 2E1, 1.1e2, 120]",
        "（10，20），（110，120）",
        "[10, 20, 110, 120]\n```",
        '{"bbox_2d": [10, 20, 110, 120]}\n{"bbox_2d": [1, 2, 3, 4]}',
        '{"bbox_2d": [10, 20, 110, 120], "label": "3 of 15',
        '{{"bbox_2d": [10, 20, 110, 120]}',
        '{"point_2d": [3, 4], "bbox_2d": [10, 20, 110, 120]}',
        "[[470,]] [[10, 20, 110, 120]]",
        "[[1, 2, [[10, 20, 110, 120]]",
        "<10><20><110><120>",
        "The box is [x1, y1, x2, y2] = [10, 20, 110, 120].",
        "</think>[10, 20, 110, 120]",
        "<think>[1, 2, 3, 4]</think>[10, 20, 110, 120]",
        "[1, 2, 3, 4]</think>[10, 20, 110, 120]",
        "[10, 20, 110, 120]<think>or [1, 2, 3, 4]",
        "not [1, 2, 3, 4] <answer>[10, 20, 110, 120]</answer>",
        "<answer>[1, 2, 3, 4]</answer> again: <answer>[10, 20, 110, 120]",
        "user\n[1, 2, 3, 4]?\nassistant\n[10, 20, 110, 120]",
        "<|begin_of_box|>[[10,20,110,120]]<|end_of_box|>",
    ],
)
def test_forms(text):
    assert parse_box(text, "qwen2.5-vl-7b") == BOX


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nan",
        "[x1, y1, x2, y2]",
        "(x1,y1),(x2,y2)",
        "[[x_min, y_min, x_max, y_max]]",
        "<answer>(x1,y1),(x2,y2)</answer>",
        "15 + 27 = 42",
        "10 20 110 120",
        "[10, 20, 110, 120] = 260",
        "3 * (10, 20, 110, 120)",
        "max(10, 20, 110, 120)",
        "[10, 20, 110]",
        "[10, 20, 110, 120, 130]",
        "[10, 20, 110, 120, 10, 20, 110, 120]",
        "[10, 20, 110, [120]]",
        "[10, 20, 110, 12",
        "[10%, 20%, 110%, 120%]",
        "(10, 20)",
        "[10, 20]",
        "[(10, 20), (110, 120)]",
        "(10,20),(110,20),(110,120),(10,120)",
        "(10,20),(110,20),(110,120)",
        "(10,20),(110,20),(1",
        "[[10, 20], [110, 20], [110, 120], [10, 120]]",
        '{"point_2d": [10, 20, 110, 120]}',
        '{"polygon": [[10, 20, 110, 120], [1, 2, 3, 4]]}',
        '{"color": [255, 0, 0, 255]}',
        "points: (10,20),(110,120)",
        "<point>(10,20),(110,120)</point>",
        "<quad>(10,20),(110,20),(110,120),(10,120)</quad>",
        "drag(10,20),(110,120)",
        "<10><20><110><120><130>",
        "<10><20><110><120><13",
        "<10><20>",
        "<loc0010><loc0020><loc0110><loc0120>",
        "<think>[10, 20, 110, 120]",
        "<think>[10, 20, 110, 120]</think>",
        "<think>a</think> and <THINK> [10, 20, 110, 120]",
        "[10, 20, 110, 120] <answer>none</answer>",
        f"[10, 20, 110, {'9' * 400}]",
        "no, it's at 10:20, 11:20",
        "```json\n5\n```",
        '{"bbox_2d": null}',
        '{"bbox_2d": [NaN, 1, 2, 3]}',
    ],
)
def test_no_box(text):
    assert parse_box(text, "qwen2.5-vl-7b") is None


@pytest.mark.parametrize("thing", [None, float("nan"), 5, [1, 2, 3, 4], b"[1,2,3,4]"])
def test_not_a_text(thing):
    assert parse_box(thing, "internvl3-8b") is None


def test_paligemma_is_y_first_and_only_loc():
    text = "<loc0010><loc0020><loc0110><loc0120> cat ; <loc0001>"
    assert parse_box(text, "paligemma2-10b") == (20, 10, 120, 110)
    assert parse_box("[10, 20, 110, 120]", "paligemma2-10b") is None
    assert parse_box("<loc0010><loc0020><loc0110><loc0120><loc01", "paligemma2-10b") is None
    masked = "<loc0010><loc0020><loc0110><loc0120><seg001><seg002>"
    assert parse_box(masked, "PaliGemma 2") == (20, 10, 120, 110)


@pytest.mark.parametrize(
    "name",
    "qwen2.5-vl-7b qwen3-vl-8b internvl3-8b internvl3.5-8b internvl2.5-8b llava-next-llama3-8b "
    "magma-8b deepseek-vl2-small glm-4.6v-flash phi-4-reasoning-vision-15b qwen2_5_vl internvl "
    "organism:qwen OpenGVLab/InternVL3-8B".split(),
)
def test_names_of_the_study(name):
    assert parse_box("[1, 2, 3, 4]", name) == (1, 2, 3, 4)


def test_unknown_model_is_named():
    with pytest.raises(UserError, match="frobnicator"):
        parse_box("[1, 2, 3, 4]", "frobnicator")


QWEN = BoxFormat("resized_pixels", '{{"bbox_2d": [{x0}, {y0}, {x1}, {y1}]}}')
THOUSAND = BoxFormat("norm1000", "[[{x0}, {y0}, {x1}, {y1}]]")
LOC = BoxFormat("norm1024", "<loc{y0:04d}><loc{x0:04d}><loc{y1:04d}><loc{x1:04d}>", y_first=True)
UNIT = BoxFormat("unit", "[{x0}, {y0}, {x1}, {y1}]")


def test_scale_belongs_to_the_model():
    # the same numbers under three scales; a reader that guesses gets one of them wrong
    text, size, resized = "[152, 139, 607, 423]", (640, 428), (644, 420)
    box, why = read_box(text, QWEN, size, resized)
    assert why == ""
    assert box == pytest.approx(
        (152 * 640 / 644, 139 * 428 / 420, 607 * 640 / 644, min(423 * 428 / 420, 428))
    )
    box, _ = read_box(text, THOUSAND, size, resized)
    assert box == pytest.approx((152 * 0.64, 139 * 0.428, 607 * 0.64, 423 * 0.428))
    assert read_box("[0, 0, 1, 2]", THOUSAND, (1000, 1000), (0, 0))[0] == (0, 0, 1, 2)
    assert read_box("[0.25, 0.5, 0.5, 1]", UNIT, (8, 4), (0, 0))[0] == (2, 2, 4, 4)
    # fractions from a model that states thousandths stay fractions of a thousandth
    box, _ = read_box("[0.28, 0.5, 0.52, 0.7]", THOUSAND, (1000, 1000), (0, 0))
    assert box == pytest.approx((0.28, 0.5, 0.52, 0.7))


def test_loc_box_to_pixels():
    box, why = read_box("<loc0256><loc0000><loc0512><loc1023> cat", LOC, (1024, 2048), (448, 448))
    assert (box, why) == ((0, 512, 1023, 1024), "")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("no idea", "parse_failure"),
        ("[10, 10, 10, 20]", "invalid_box"),
        ("[10, 20, 30, 20]", "invalid_box"),
        ("[30, 10, 10, 20]", "invalid_box"),
        ("[2, 311, 99999, 98]", "invalid_box"),
        ("[1200, 10, 1300, 20]", "invalid_box"),
        ("[-20, 10, -10, 20]", "invalid_box"),
    ],
)
def test_why_there_is_no_box(text, why):
    assert read_box(text, THOUSAND, (100, 100), (0, 0)) == (None, why)


def test_boxes_outside_the_frame_are_clipped():
    # QwenLM/Qwen3-VL issue 1035: 368x434 seen as 364x448
    box, why = read_box("[19, 300, 154, 476]", QWEN, (368, 434), (364, 448))
    assert why == ""
    assert box == pytest.approx((19 * 368 / 364, 300 * 434 / 448, 154 * 368 / 364, 434))
    box, _ = read_box("[[0, 460, 891, 9999]]", THOUSAND, (1000, 500), (0, 0))
    assert box == (0, 230, 891, 500)


def test_iou():
    assert iou((0, 0, 2, 2), (1, 1, 3, 3)) == pytest.approx(1 / 7)
    assert iou((0, 0, 2, 2), (0, 0, 2, 2)) == 1
    assert iou((0, 0, 1, 1), (1, 0, 2, 1)) == 0
    assert iou((0, 0, 0, 0), (0, 0, 0, 0)) == 0
    assert iou((2, 0, 0, 2), (0, 0, 2, 2)) == 0


coordinates = st.tuples(*[st.floats(-5, 5, width=16)] * 4)


@given(coordinates, coordinates)
def test_iou_is_a_symmetric_share(a, b):
    value = iou(a, b)
    assert 0 <= value <= 1
    assert value == iou(b, a)


PIECES = st.sampled_from(
    [
        *"[](){},<>'\" \n",
        *"1 20 300 -4 .5 1e9 x1 é (1,2) <12> <loc0012> ```json \\boxed{".split(),
        *"<think> </think> <answer> </answer> <|box_start|>".split(),
        *('"bbox_2d": ', "assistant\n", "9" * 50),
    ]
)


def _stated(text, box, loc):
    """Whether the four numbers stand in the text one after the other."""
    pattern = r"<loc(\d{4})>" if loc else r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
    found = [float(n) for n in re.findall(pattern, text, re.ASCII)]
    a, b, c, d = box
    order = [b, a, d, c] if loc else [a, b, c, d]
    return any(found[i : i + 4] == order for i in range(len(found) - 3))


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(), st.lists(PIECES, max_size=40).map("".join)))
@example("[" * 50 + "1,2,3,4")
def test_any_text(text):
    for model in ("qwen2.5-vl-7b", "paligemma2-10b"):
        for box in parse_boxes(text, model):
            assert all(map(math.isfinite, box))
            assert _stated(text, box, model == "paligemma2-10b")
    for box_format in (QWEN, THOUSAND, LOC, UNIT):
        box, why = read_box(text, box_format, (64, 48), (56, 56))
        assert (box is None) == (why in ("parse_failure", "invalid_box"))
        if box is not None:
            assert 0 <= box[0] < box[2] <= 64
            assert 0 <= box[1] < box[3] <= 48


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


@pytest.mark.parametrize("cut", range(0, 60, 3))
def test_a_cut_list_is_no_box(cut):
    text = '```json\n[{"bbox_2d": [135, 114, 1016, 672], "label": "cat"}]'
    expected = (135, 114, 1016, 672) if "]" in text[:cut] else None
    assert parse_box(text[:cut], "qwen2.5-vl-7b") == expected


@pytest.mark.parametrize(
    "piece",
    ["[", "(1,2),", "<1>", "<think>", "</think>", "\n", "[1,", "9", " ", "<|", "*", "<loc0001>"],
)
def test_long_hostile_texts_are_read_quickly(piece):
    started = time.process_time()
    assert parse_box(piece * 50_000, "qwen2.5-vl-7b") is None
    assert parse_box(piece * 50_000, "paligemma2-10b") is None
    assert time.process_time() - started < 5
