"""Boxes in printed answers: real ones, broken ones, arbitrary text."""

# ruff: noqa: RUF001 - such characters are in the texts that are read

import dataclasses
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_ports.box_format import BoxFormat
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


FORMS = [
    "Top-left corner: x=10, y=20; bottom-right corner: x=110, y=120",
    "Upper left: 10, 20\nLower right: 110, 120",
    "x_min: 10, x_max: 110, y_min: 20, y_max: 120",
    "(xmin, ymin, xmax, ymax) = (10, 20, 110, 120)",
    "Left: 10, Top: 20, Right: 110, Bottom: 120",
    "<|det|>text [10,20,110,120]<|/det|>",
    "User: <image>\nProvide the box of <ref>car</ref>.\nAssistant: car[[10, 20, 110, 120]]",
    "{1: [10, 20, 110, 120], 2: [0, 6, 174, 392]}",
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
    '{"x1": 10, "y1": 20, "x2": 110, "y2": 120}',
    '{"y1": 20, "x1": 10, "y2": 120, "x2": 110}',
    '{"xmin": 10, "ymin": 20, "xmax": 110, "ymax": 120}',
    '{"ymin": 20, "xmin": 10, "ymax": 120, "xmax": 110, "label": "cat"}',
    '{"bbox": {"x_min": 10, "y_min": 20, "x_max": 110, "y_max": 120}}',
    '{"label": "cat 3", "x1": "10", "y1": "20", "x2": "110", "y2": "120", "score": 0.9}',
    "{'x1': 10, 'y1': 20, 'x2': 110, 'y2': 120}",
    "x1=10, y1=20, x2=110, y2=120",
    "x1: 10\ny1: 20\nx2: 110\ny2: 120",
    "- **x1**: 10\n- **y1**: 20\n- **x2**: 110\n- **y2**: 120",
    "x_min = 10, y_min = 20, x_max = 110, and y_max = 120",
    '{"left": 10, "top": 20, "right": 110, "bottom": 120}',
    '{"x": 10, "y": 20, "width": 100, "height": 100}',
    "top-left (10, 20), bottom-right (110, 120)",
    "The top-left corner is at (10, 20) and the bottom-right corner is at (110, 120).",
    "Top left: [10, 20]\nBottom right: [110, 120]",
    '{"top_left": [10, 20], "bottom_right": [110, 120]}',
    '{"top_left": {"x": 10, "y": 20}, "bottom_right": {"x": 110, "y": 120}}',
    "(x1, y1) = (10, 20), (x2, y2) = (110, 120)",
    "upper-left corner (10, 20), lower-right corner (110, 120)",
    "左上角(10, 20)，右下角(110, 120)",
    "\\boxed{[10, 20, 110, 120]}",
    "\\boxed{10, 20, 110, 120}",
    "$\\left[10, 20, 110, 120\\right]$",
    "\\[10, 20, 110, 120\\]",
    "\\(10, 20, 110, 120\\)",
    "**Bounding box:** [10, 20, 110, 120]",
    "`[10, 20, 110, 120]`",
    "[**10**, **20**, **110**, **120**]",
    "【10，20，110，120】",
    "［10，20，110，120］",
    "〔10、20、110、120〕",
    "bbox: 10, 20, 110, 120",
    "Bounding box: 10, 20, 110, 120.",
    "The bounding box coordinates are 10, 20, 110, 120.",
    '"bbox_2d": 10, 20, 110, 120]',
    '"bbox_2d": "10, 20, 110, 120"',
    '"bbox_2d": "[10, 20, 110, 120]"',
    '{"bbox_2d": [[10, 20], [110, 120]]}',
    "<box>[[10, 20], [110, 120]]</box>",
    '"bbox": [(10, 20), (110, 120)]',
    "10, 20, 110, 120",
    "10,20,110,120\n",
    "[10 20 110 120]",
    "[[[10, 20, 110, 120]]]",
    "[10,20,110,120]]]",
    "[[10, 20, 110, 120], 0.93]",
    "[10, 20, 110, 120]: cat",
    "1. [10, 20, 110, 120] - cat",
    "- [10, 20, 110, 120]\n- [1, 2, 3, 4]",
    "* cat: [10, 20, 110, 120]\n* dog: [1, 2, 3, 4]",
    "Object 1 - [10, 20, 110, 120]",
    "cat [10, 20, 110, 120] (the left one)",
    "(10, 20), (110, 120) (the left one)",
    "(10,20),(110,120)\n(1,2),(3,4)",
    "(10,20),(110,120) and (1,2),(3,4)",
    "(10,20) , (110,120)",
    "First I thought [1, 2, 3, 4]. Final answer: [10, 20, 110, 120]",
    "Not [1,2,3,4].\n**Answer:** [10, 20, 110, 120]",
    "<think>[1,2,3,4]</think>\n<answer>[10, 20, 110, 120]</answer>",
    "<|begin_of_box|>[10,20,110,120]<|end_of_box|>",
    "<|begin_of_box|>[[10,20,110,120],[1,2,3,4]]<|end_of_box|>",
    '{"bbox_2d": [10, 20, 110, 120], "point_2d": [60, 70]}',
    '{"point_2d": [60, 70], "bbox_2d": [10, 20, 110, 120]}',
    '{"polygon": [[1,2],[3,4],[5,6]], "bbox": [10, 20, 110, 120]}',
    '{"segmentation": [1,2,3,4,5,6], "bbox": [10, 20, 110, 120]}',
    '{"box_2d": [10, 20, 110, 120], "mask": "<start_of_mask>"}',
    '[{"bbox_2d": [10, 20, 110, 120], "label": "cat"}, {"bbox_2d": [1, 2,',
    '```json\n{\n  "bbox_2d": [\n    10,\n    20,\n    110,\n    120\n  ]\n}\n```',
    "BoundingBox(10, 20, 110, 120)",
    "bbox=(10, 20, 110, 120)",
    "Box(x1=10, y1=20, x2=110, y2=120)",
    "<box>10,20,110,120</box>",
    "<bbox>[10, 20, 110, 120]</bbox>",
    "<|box_start|>(10,20),(110,120)",
    "<|det|>[[10, 20, 110, 120]]",
    "<|det|>[[10, 20, 110, 120]]<|/de",
    "<|ref|>a<|/ref|><|det|>[[10, 20, 110, 120], [1, 2, 3, 4]]<|/det|>",
    "[10.0, 20.0, 110.0, 120.0]",
    "[+10, +20, +110, +120]",
    "Coordinates: [10, 20, 110, 120]",
    "[10, 20, 110, 120] pixels",
    "assistant: [10, 20, 110, 120]",
    "<|im_start|>assistant\n[10, 20, 110, 120]<|im_end|>",
    "USER: where? [1,2,3,4] ASSISTANT: [10, 20, 110, 120]</s>",
    "User: [1,2,3,4]?\n\nAssistant: [10, 20, 110, 120]",
    "<|user|>[1,2,3,4]<|assistant|>[10, 20, 110, 120]",
    "[10, 20, 110, 120]<|eot_id|>",
    "[ymin, xmin] no. [10, 20, 110, 120]",
    "The format is [x1, y1, x2, y2]: [10, 20, 110, 120]",
    "{10, 20, 110, 120}",
    "[10, 20, 110, 120];[1, 2, 3, 4]",
]


@pytest.mark.parametrize("text", FORMS)
def test_forms(text):
    assert parse_box(text, "qwen2.5-vl-7b") == BOX


NONE = [
    "Polygon coordinates: 10, 20, 110, 120",
    "The line (10, 20), (110, 120)",
    "Top left: 10, 20, and no more",
    "Top left: x=10, y=20",
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
    "no, it's at 10:20, 11:20",
    "```json\n5\n```",
    '{"bbox_2d": null}',
    '{"bbox_2d": [NaN, 1, 2, 3]}',
    "x1, y1, x2, y2",
    "(x1=, y1=, x2=, y2=)",
    '{"bbox_2d": [x1, y1, x2, y2]}',
    '{"x1": x1, "y1": y1, "x2": x2, "y2": y2}',
    "[x_1, y_1, x_2, y_2]",
    "[<x1>, <y1>, <x2>, <y2>]",
    "<x1><y1><x2><y2>",
    "[[x1,y1,x2,y2], …]",
    "[[x1,y1,x2,y2], [x3,y3,x4,y4]]",
    "[left, top, right, bottom]",
    "[0.xx, 0.xx, 0.xx, 0.xx]",
    "[..., ..., ..., ...]",
    "(top-left x, top-left y, bottom-right x, bottom-right y)",
    '<points x1="10" y1="20" x2="110" y2="120" alt="cat">cat</points>',
    '<point x="10" y="20">',
    '{"points": {"x1": 10, "y1": 20, "x2": 110, "y2": 120}}',
    '{"x1": 1, "y1": 2, "x2": 3, "y2": 4, "x3": 5, "y3": 6}',
    '{"x1": 1, "y1": 2, "x2": 3, "y2": 4, "x3": 5, "y3": 6, "x4": 7, "y4": 8}',
    "x=10, y=20",
    "(10, 20) and (110, 120)",
    "(10, 20) to (110, 120)",
    "The top left cat is at (10, 20) and the dog at bottom right is at (110, 120)",
    "[[10, 20], [110, 120]]",
    '{"point_2d": [[10, 20], [110, 120]]}',
    "(10,20), (110,20) and (110,120)",
    "(10,20) -> (110,20) -> (110,120)",
    "[10, 20, 110, 20, 110, 120, 10, 120]",
    '{"polygon": [10, 20, 110, 120]}',
    '"quad": [[10, 20, 110, 120]]',
    "15, 27 = 42, 3",
    "(10, 20, 110, 120) / 1000",
    "[10, 20, 110, 120] / 1000",
    "[10*2, 20*2, 110*2, 120*2]",
    "2 * [10, 20, 110, 120]",
    "[10, 20, 110, 120] + [1, 2, 3, 4]",
    "[10, 20, 110, 120] - [1, 2, 3, 4]",
    "[10, 20, 110 - 10, 120 - 20]",
    "I count 1, 2, 3, 4 apples.",
    "boxes 1, 2, 3, 4",
    "in 1999, 2000, 2001, 2002",
    "[245,[234,543,542,244]]",
    "[580, 270, 999, [904]]",
    "[533, 132, 457]",
    "[[470,]]",
    "[10px, 20px, 110px, 120px]",
    "rgba(255, 0, 0, 255)",
    "max(1, 2, 3, 4)",
    "range(1, 2, 3, 4)",
    "click(10,20),(110,120)",
    "The points are (10, 20), (110, 120)",
    "[10, 20, 110, 120",
    "<|det|>[[10, 20, 110, 120<|/det|>",
    '{"x1": 10, "y1": 20, "x2": 110}',
    '{"x1": 10, "y1": 20, "x2": 110, "y2"',
    "x1 = 100 + 20, y1 = 3, x2 = 4, y2 = 5",
    "x1 = 152/1000*640 = 97, y1 = 1, x2 = 2, y2 = 3",
    "width=10, height=20",
    "cx=1, cy=2, w=3, h=4",
    '{"x_center": 1, "y_center": 2, "width": 3, "height": 4}',
    "3D box [1.2, 0.5, 3, 4, 5, 6, 0, 0, 0.1]",
    "12:30, 13:40, 14:50",
    "[1] [2] [3] [4]",
    "[1,2] [3,4]",
    "IP 10.20.110.120",
    "v1.2.3.4",
    "[10.20.110.120]",
    "(1) cat (2) dog (3) bird (4) cow",
    "[10, 20, 110, 1e999]",
    "[10, nan, 20, 30]",
    "[10, inf, 20, 30]",
    "[10, 20, 110, 0x78]",
    "[10, 20, 110, -]",
    "box count: 4",
    "coordinates: 1, 2",
    "1,024, 300, 20",
    "[1,024, 300, 20, 5]",
    '{"bbox_2d": [10, 20, 110, 120,]}',
    f"[10, 20, 110, {'9' * 400}]",
]


@pytest.mark.parametrize("text", NONE)
def test_no_box(text):
    assert parse_boxes(text, "qwen2.5-vl-7b") == []


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


def test_location_tokens_are_those_of_the_vocabulary():
    assert parse_box("<loc1024><loc0000><loc0512><loc1023> cat", "paligemma2-10b") is None
    assert parse_box("<loc12><loc0000><loc0512><loc1023> cat", "paligemma2-10b") is None


def test_padded_square():
    # LLaVA: 640x480 in a square of 640, 80 pixels above and below
    padded = dataclasses.replace(UNIT, frame="padded_square")
    text = "[0.25, 0.25, 0.5, 0.75]"
    assert read_box(text, UNIT, (640, 480), (0, 0))[0] == (160, 120, 320, 360)
    assert read_box(text, padded, (640, 480), (0, 0))[0] == (160, 80, 320, 400)
    assert read_box(text, padded, (480, 640), (0, 0))[0] == (80, 160, 240, 480)
    assert read_box("[0, 0, 1, 1]", padded, (640, 480), (0, 0))[0] == (0, 0, 640, 480)
    assert read_box("[0, 0, 1, 0.1]", padded, (640, 480), (0, 0)) == (None, "invalid_box")
    thousand = dataclasses.replace(THOUSAND, frame="padded_square")
    assert read_box("[250, 250, 500, 750]", thousand, (640, 480), (0, 0))[0] == (160, 80, 320, 400)


def test_location_tokens_to_pixels():
    text = "<loc0000><loc0000><loc1023><loc1023>"
    for units, share in (("norm1023", 1), ("norm1024", 1023 / 1024)):
        box, _ = read_box(text, dataclasses.replace(LOC, units=units), (640, 480), (448, 448))
        assert box == pytest.approx((0, 0, 640 * share, 480 * share))


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


def test_pixels_of_the_input_need_its_size():
    with pytest.raises(ValueError, match=r"need its size, not \(0, 0\)"):
        read_box("[1, 2, 3, 4]", QWEN, (640, 480), (0, 0))


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
