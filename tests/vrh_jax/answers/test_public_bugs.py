"""Public bug reports about reading and scoring, each with the smallest input that shows it.

The numbers are those of section 5 of the project's facts on benchmarks. Not here, since they are
not about what is read from an answer or how it is scored:

- 5 (a sentence of RefCOCO+ that looks corrupt stays as it is), 21 (corners at x + w + 1) and 22
  (two sentences for one object): loaders, tests/vrh_jax/data/test_refcoco.py and
  test_grounding_realdata.py.
- 23 (tiling forgotten): tests/model_ports/images/test_tiling.py and the InternVL processor.
- 34 to 38 (tiny images, sides below 28, ratios above 200, modes, EXIF): tests/model_ports/images
  and tests/vrh_jax/data/test_images.py.
- 39 (elbow index on another order): tests/vrh_jax/heads. 40 (eager against fused attention): the
  parity tests of the ports and tests/model_ports/test_decoder.py.

Of the others that touch loaders or models too, what concerns an answer is tested here.
"""

import dataclasses

import pytest

from vrh_jax.answers import (
    box_format,
    iou,
    judge,
    parse_box,
    parse_boxes,
    read_box,
    read_choice,
    read_count,
    read_length,
    read_yes_no,
)
from vrh_jax.data.prompts import prompt_grid
from vrh_jax.data.sample import Sample
from vrh_jax.engine.batching import Task, blocks

QWEN2_5, QWEN3 = box_format("qwen2.5-vl-7b"), box_format("qwen3-vl-8b")
QWEN_VL, INTERNVL = box_format("Qwen-VL"), box_format("internvl3-8b")
DEEPSEEK, LLAVA = box_format("deepseek-vl2-small"), box_format("llava-next-llama3-8b")
NO_FRAME = (0, 0)


def sample(kind="grounding", answer="", box=None, size=(1000, 1000), choices=(), rule=""):
    return Sample("s", kind, "?", None, size, box, answer, "i", "i", choices, rule=rule)


def pixels(text, form, size, resized=NO_FRAME):
    box, why = read_box(text, form, size, resized)
    assert why == ""
    return box


def letter(text, choices=("first", "second", "third", "fourth")):
    index = read_choice(text, choices)
    return None if index is None else "ABCDEFGHIJ"[index]


def test_01_thousandths_are_rescaled():
    """lmms-eval 98: all RefCOCO scores 0, since 0-1000 was compared with 0-1."""
    one = sample(box=(250, 40, 450, 160), size=(500, 200))
    assert judge(one, "[500, 200, 900, 800]", QWEN_VL).iou == pytest.approx(1)


def test_02_the_prompt_asks_for_what_is_read():
    """lmms-eval 892: a captioning prompt and the scale of another model."""
    prompt = prompt_grid()["qwen3-vl-8b", "refcoco"]["grounding"]
    assert "bounding box" in prompt.template
    assert "between 0 and 1" not in prompt.template
    assert pixels("[500, 200, 900, 800]", QWEN3, (640, 480)) == (320, 96, 576, 384)


def test_03_one_scale_not_the_better_of_two():
    """lmms-eval PR 1373: a box that is right only when misread as thousandths is wrong."""
    one = sample(box=(100, 100, 300, 300), size=(500, 500))
    text = "[200, 200, 600, 600]"  # right as thousandths of 500 pixels
    assert judge(one, text, QWEN3).correct
    verdict = judge(one, text, QWEN2_5, (500, 500))
    assert (verdict.correct, verdict.failure) == (False, "mislocated")


def test_04_the_scale_is_not_guessed_from_the_largest_number():
    """VLMEvalKit, refcoco.py: pixels below 1000 taken for thousandths, IoU 0.064 for 0.997."""
    true = (152 * 640 / 644, 139 * 428 / 420, 607 * 640 / 644, 423 * 428 / 420)
    text, one = "[152, 139, 607, 423]", sample(box=true, size=(640, 428))
    assert judge(one, text, QWEN2_5, (644, 420)).iou > 0.98
    assert judge(one, text, QWEN3).iou < 0.5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The correct answer is **B**. Here's why...", "B"),
        ("The correct answer is **B**. Here's why: A is wrong.", "B"),
    ],
)
def test_06_an_explanation_follows_the_letter(text, expected):
    """VLMEvalKit PR 1552 and lmms-eval's mcq_extract."""
    assert letter(text) == expected


def test_07_no_is_a_word():
    """VLMEvalKit 73: 'no' found inside "notice"."""
    assert read_yes_no("Yes, ... a death notice") is True
    assert read_yes_no("a death notice") is None


def test_08_a_count_is_a_number():
    """VLMEvalKit, CountBenchQA: substring; "13" was right for 3, "three" wrong."""
    assert not judge(sample("count", "3", rule="countbench"), "13").correct
    assert judge(sample("count", "3", rule="countbench"), "three").correct


@pytest.mark.parametrize("text", ["The answer is B", "Option B", "**B**"])
def test_09_the_first_character_is_not_the_letter(text):
    """lmms-eval, cv_bench: 'T', 'O' and '' for B."""
    one = sample("choice", "B", choices=("a", "b", "c"), rule="cv_bench")
    assert judge(one, text).correct


def test_10_an_article_is_no_option():
    """OmniBench 8: "C. A pretty girl" read as A."""
    assert letter("C. A pretty girl") == "C"


@pytest.mark.parametrize("text", ["Answer: **D**", "(A) is incorrect. Final answer: D"])
def test_11_a_rejected_option_is_no_answer(text):
    """OPD-V 2: A in both."""
    assert letter(text) == "D"


def test_12_a_pronoun_is_no_option():
    """omlx PR 3668: "I" read as the ninth option."""
    assert letter("The answer is C because I computed", [f"text {i}" for i in range(10)]) == "C"


def test_13_the_last_declaration_counts():
    """openai/frontier-evals 125: the first of two counted."""
    assert letter("Answer: A\n...\nAnswer: B") == "B"
    assert read_count("Answer: 3\n...\nAnswer: 4") == 4


def test_14_a_letter_in_a_formula_is_no_answer():
    """NeMo-Skills PR 1526: the E of a boxed formula."""
    assert letter(r"\boxed{\Delta E} **Answer: D**", [f"text {i}" for i in range(5)]) == "D"


@pytest.mark.parametrize(
    ("size", "resized"), [((640, 428), (644, 420)), ((1080, 1920), (756, 1316))]
)
def test_15_qwen2_5_speaks_of_the_resized_input(size, resized):
    """Qwen3-VL 676, 830, 947, 1367: one factor per axis, from what the model saw."""
    box = pixels("[100, 200, 300, 400]", QWEN2_5, size, resized)
    x, y = size[0] / resized[0], size[1] / resized[1]
    assert x != y
    assert box == pytest.approx((100 * x, 200 * y, 300 * x, 400 * y))


def test_16_a_box_beyond_the_frame_is_clipped():
    """Qwen3-VL 1035: y2 = 476 in a frame of 448."""
    box = pixels("[19, 300, 154, 476]", QWEN2_5, (368, 434), (364, 448))
    assert box == pytest.approx((19 * 368 / 364, 300 * 434 / 448, 154 * 368 / 364, 434))


def test_17_both_ends_of_the_scale():
    """Qwen3-VL 1741, 1254: 1000 is the edge, 999 a thousandth before it; DeepSeek's edge is 999."""
    assert pixels("[0, 0, 1000, 999]", QWEN3, (2000, 2000)) == (0, 0, 2000, 1998)
    assert pixels("[[0, 0, 999, 999]]", DEEPSEEK, (2000, 1000)) == (0, 0, 2000, 1000)


def test_18_extreme_aspect_ratios():
    """Qwen3-VL 2020: each axis has its own scale, however long the image."""
    assert pixels("[323, 118, 444, 825]", QWEN3, (4000, 100)) == pytest.approx(
        (1292, 11.8, 1776, 82.5)
    )
    assert pixels("[10, 20, 40, 1200]", QWEN2_5, (100, 4000), (112, 3976)) == pytest.approx(
        (10 * 100 / 112, 20 * 4000 / 3976, 40 * 100 / 112, 1200 * 4000 / 3976)
    )


def test_19_x_comes_first():
    """Qwen3-VL 1397: a comment of the cookbook says y first; the code and the model do not."""
    assert parse_box('{"bbox_2d": [10, 20, 300, 40]}', "qwen2.5-vl-7b") == (10, 20, 300, 40)
    assert parse_box("<loc0020><loc0010><loc0040><loc0300> cat", "paligemma2-10b") == (
        10,
        20,
        300,
        40,
    )


def test_20_fractions_from_a_pixel_model_stay_pixels():
    """Qwen3-VL 991, VLM-R1 6: where a prompt elicits ratios, the result shows it."""
    one = sample(box=(280, 500, 520, 700))
    verdict = judge(one, "[0.28, 0.5, 0.52, 0.7]", QWEN2_5, (1000, 1000))
    assert (verdict.failure, verdict.iou) == ("mislocated", 0)
    assert "pixels" not in prompt_grid()["qwen2.5-vl-7b", "refcoco"]["grounding"].template


def test_21_overlap_is_continuous():
    """VLM-R1 11, 194: corners one pixel further are another box; no +1 is added in scoring."""
    a, b = (103.93, 299.99, 237.15, 476.41), (103.93, 299.99, 238.15, 477.41)
    areas = [(x1 - x0) * (y1 - y0) for x0, y0, x1, y1 in (a, b)]
    assert iou(a, b) == pytest.approx(areas[0] / areas[1])


def test_24_tags_stripped_and_template_echoed():
    """InternVL 953, 625."""
    assert parse_box("car[[561, 660, 695, 1000]]", "internvl2.5-8b") == (561, 660, 695, 1000)
    echo = (
        "The bounding box coordinates of the region this sentence describes are [x1, y1, x2, y2]."
    )
    assert parse_boxes(echo, "internvl2.5-8b") == []


def test_25_the_scale_without_tags_is_the_same():
    """InternVL 1016, 1084, vLLM 9153: with special tokens or without, thousandths of the image."""
    tagged = "<ref>a cat</ref><box>[[100, 200, 300, 400]]</box>"
    plain = "a cat[[100, 200, 300, 400]]"
    assert pixels(tagged, INTERNVL, (640, 480)) == pixels(plain, INTERNVL, (640, 480))
    assert pixels(plain, INTERNVL, (640, 480)) == (64, 96, 192, 192)


def test_26_small_numbers_are_thousandths_too():
    """InternVL, evaluate_grounding.py: below a sum of 4 nothing was divided by 1000."""
    assert pixels("[[0, 0, 1, 2]]", INTERNVL, (1000, 1000)) == (0, 0, 1, 2)


def test_27_no_tail_is_dropped_and_thousandths_are_of_a_thousand():
    """Qwen-VL, evaluate_grounding.py: drop_last loses 2 of 10 items; /999 in place of /1000."""
    prompt = prompt_grid()["internvl3-8b", "refcoco"]["grounding"]
    tasks = [Task(dataclasses.replace(sample(), id=str(i)), prompt) for i in range(10)]
    assert [len(block) for block in blocks(tasks, 8)] == [8, 2]
    assert pixels("<box>(0,0),(500,999)</box>", QWEN_VL, (1000, 1000)) == (0, 0, 500, 999)


@pytest.mark.parametrize(
    "text",
    [
        "<|ref|>a cake<|/ref|><|det|>[[470,]]<|/det|>",
        "<|det|>[[0, 5329, 5310, 9, 99999]]<|/det|>",
        "<|det|>[[0, 50, 55, 9999",
        "[533, 132, 457]",
        "[245,[234,543,542,244]]",
        "[580, 270, 999, [904]]",
    ],
)
def test_28_malformed_boxes_are_not_repaired(text):
    """DeepSeek-VL2 123, 96, 100, 33, 94."""
    assert parse_boxes(text, "deepseek-vl2-small") == []


def test_28_unclosed_tags_and_runaway_digits():
    form = "deepseek-vl2-small"
    assert parse_box("<|det|>[[220, 416, 417, 720]]", form) == (220, 416, 417, 720)
    cut = "<|det|>[[0, 50, 55, 9999], [0, 5, 533, 17, " + "9" * 500
    assert parse_boxes(cut, form) == [(0, 50, 55, 9999)]
    assert pixels("[[0, 460, 891, 9999]]", DEEPSEEK, (999, 999)) == (0, 460, 891, 999)
    assert read_box("[[2, 311, 99999, 98]]", DEEPSEEK, (9, 9), NO_FRAME) == (None, "invalid_box")


def test_29_the_padded_square_is_an_option():
    """TRI-ML/vlm-evaluation 16, LLaVA 606, 822: the frame changes the box of a wide image."""
    text, size = "[0.006, 0.407, 0.807, 0.849]", (640, 480)
    square = dataclasses.replace(LLAVA, frame="padded_square")
    plain = pixels(text, LLAVA, size)
    padded = pixels(text, square, size)
    assert plain == pytest.approx((3.84, 195.36, 516.48, 407.52))
    assert padded == pytest.approx((3.84, 0.407 * 640 - 80, 516.48, 0.849 * 640 - 80))
    assert iou(plain, padded) < 0.8
    assert pixels(text, square, (480, 480)) == pixels(text, LLAVA, (480, 480))


def test_30_zero_padded_thousandths():
    """CogVLM 46, UniVG-R1 15: 097 is 97, and a thousandth of a 288x296 image."""
    box = pixels("[[097,514,283,996]]", box_format("cogvlm"), (288, 296))
    assert box == pytest.approx((97 * 0.288, 514 * 0.296, 283 * 0.288, 996 * 0.296))


def test_31_the_key_does_not_tell_the_scale():
    """pelican-vl 8, Kimi-VL 56: fractions under bbox_2d."""
    text = '{"bbox_2d": [0.28, 0.5, 0.52, 0.7]}'
    assert parse_box(text, "kimi-vl") == (0.28, 0.5, 0.52, 0.7)
    assert pixels(text, box_format("kimi-vl"), (100, 100)) == pytest.approx((28, 50, 52, 70))
    assert pixels(text, QWEN3, (1000, 1000)) == pytest.approx((0.28, 0.5, 0.52, 0.7))


@pytest.mark.parametrize(
    "text",
    [
        '[{"bbox_2d": [1, 2, 3, 4], "label": "a"}]\n```',
        '{"bbox_2d": [1, 2, 3, 4]}\n{"bbox_2d": [5, 6, 7, 8]}',
        '{"bbox_2d": [1, 2, 3, 4]}, {"bbox_2d": [5, 6, 7, 8]}]',
        '"bbox_2d": 1, 2, 3, 4], "label": "a"}]',
        '{"box_2d": [1, 2, 3, 4]}',
    ],
)
def test_32_json_in_a_broken_container(text):
    """roboflow/inference PRs 2921, 2930, 2875, 2906."""
    assert parse_box(text, "qwen3-vl-8b") == (1, 2, 3, 4)


@pytest.mark.parametrize(
    "text", ["```json\n5\n```", '```json\n"a"\n```', "[]", "{}", "null", "[[]]"]
)
def test_33_valid_json_of_the_wrong_shape(text):
    """roboflow/supervision PR 2342: crashes."""
    assert parse_boxes(text, "qwen2.5-vl-7b") == []
    assert judge(sample(box=(0, 0, 1, 1)), text, QWEN3).failure == "parse_failure"


@pytest.mark.parametrize(
    ("text", "dimension", "metres"),
    [
        ("Region [0] is 48.47 centimeters", "", 0.4847),
        ("2'3\"", "", 27 * 0.0254),
        ("about 1.5 m wide and 2 m tall", "width", 1.5),
        ("about 1.5 m wide and 2 m tall", "height", 2.0),
        ("10.0 inches", "", 0.254),  # a language model converted it to 0.25
    ],
)
def test_41_lengths_are_converted_exactly(text, dimension, metres):
    """SpatialRGPT 33 and its scorer; the number in "Region [0]" is no length."""
    assert read_length(text, dimension) == pytest.approx(metres)
    assert read_length("Region [0]") is None


def test_42_of_several_instances_the_first_counts():
    """Qwen3-VL 1257, InternVL 1103: three apples, one box asked for."""
    text = '[{"bbox_2d": [1, 2, 30, 40]}, {"bbox_2d": [50, 60, 70, 80]}, {"bbox_2d": [5, 5, 9, 9]}]'
    assert len(parse_boxes(text, "qwen3-vl-8b")) == 3
    assert parse_box(text, "qwen3-vl-8b") == (1, 2, 30, 40)


@pytest.mark.parametrize("text", ["", "nan", float("nan"), None, "no box"])
def test_no_prediction_counts_as_wrong(text):
    """RefSpatial's scorer drops answers that it cannot read; str(float("nan")) is "nan"."""
    for kind in ("grounding", "choice", "count", "text", "number"):
        one = sample(kind, "3", (0, 0, 1, 1), choices=("3", "4"))
        assert not judge(one, text, QWEN3).correct


def test_no_area_is_no_overlap():
    """lmms-eval's compute_iou divides by zero when both boxes are empty."""
    assert iou((0, 0, 0, 0), (0, 0, 0, 0)) == 0
    assert iou((5, 5, 5, 9), (5, 5, 5, 9)) == 0
    assert read_box("[550, 580, 550, 702]", QWEN3, (100, 100), NO_FRAME) == (None, "invalid_box")


def test_the_caption_is_not_shown():
    """lmms-eval's countbenchqa prepends the caption, which holds the number."""
    prompt = prompt_grid()["magma-8b", "countbench"]["count"]
    assert prompt.template.startswith("{text}")
