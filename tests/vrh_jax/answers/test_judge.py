"""Verdicts, and the readers of counts, choices, yes or no and lengths."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_ports.box_format import BoxFormat
from vrh_jax.answers import judge, read_choice, read_count, read_length, read_yes_no
from vrh_jax.data.sample import Sample

THOUSAND = BoxFormat("norm1000", "[[{x0}, {y0}, {x1}, {y1}]]")
OPTIONS = ("red", "blue", "dark blue", "green")


def sample(kind, answer="", box=None, choices=()):
    return Sample(
        id="s", kind=kind, text="?", image=None, image_size=(100, 100), box=box, answer=answer,
        image_id="i", group="i", choices=choices,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("[[100, 100, 500, 500]]", ""),
        ("[[100, 100, 500, 300]]", ""),  # IoU exactly 0.5 counts
        ("[[100, 100, 500, 299]]", "mislocated"),
        ("[[600, 600, 900, 900]]", "mislocated"),
        ("[[500, 500, 100, 100]]", "invalid_box"),
        ("[x1, y1, x2, y2]", "parse_failure"),
        (None, "parse_failure"),
        (float("nan"), "parse_failure"),
    ],
)
def test_grounding(text, failure):
    verdict = judge(sample("grounding", box=(10, 10, 50, 50)), text, THOUSAND)
    assert verdict.failure == failure
    assert verdict.correct == (failure == "")
    assert (verdict.box is None) == (failure in ("invalid_box", "parse_failure"))
    assert (verdict.iou >= 0.5) == verdict.correct


def test_grounding_without_a_format_is_a_mistake_of_the_caller():
    with pytest.raises(ValueError, match="'s'"):
        judge(sample("grounding", box=(0, 0, 1, 1)), "[1, 2, 3, 4]")


@pytest.mark.parametrize(
    ("kind", "answer", "text", "failure"),
    [
        ("text", "red", "Red.", ""),
        ("text", "red", " **red** <|im_end|>", ""),
        ("text", "red", "The answer is red.", ""),
        ("text", "red", "<think>blue</think>red", ""),
        ("text", "red", "{'Reasoning': 'blue?', 'Answer': 'red'}", ""),
        ("text", "red", "dark red", "wrong_answer"),
        ("text", "red", "<think>red", "parse_failure"),
        ("text", "red", "", "parse_failure"),
        ("text", "yes", "Yes, a death notice", ""),
        ("text", "no", "Yes, a death notice", "wrong_answer"),
        ("text", "no", "a notice", "parse_failure"),
        ("text", "True", "yes", ""),
        ("text", "3", "three", ""),
        ("count", "3", "13", "wrong_answer"),
        ("count", "3", "three", ""),
        ("count", "three", "3", ""),
        ("count", "3", "many", "parse_failure"),
        ("needle", "8414", "The code is 8414.", ""),
        ("needle", "8414", "84145", "wrong_answer"),
        ("needle", "the red door", "It is the red door, of course.", ""),
        ("needle", "8414", "", "parse_failure"),
    ],
)
def test_questions(kind, answer, text, failure):
    verdict = judge(sample(kind, answer), text)
    assert (verdict.failure, verdict.correct) == (failure, failure == "")


@pytest.mark.parametrize(
    ("answer", "text", "failure"),
    [
        ("blue", "B", ""),
        ("(B)", "The answer is blue.", ""),
        ("B", "dark blue", "wrong_answer"),
        ("dark blue", "It is dark blue", ""),
        ("B", "red or green", "parse_failure"),
        ("B", "", "parse_failure"),
    ],
)
def test_choice_by_letter_or_text(answer, text, failure):
    assert judge(sample("choice", answer, choices=OPTIONS), text).failure == failure


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("The correct answer is **B**. Here's why: A is wrong.", "B"),
        ("The correct answer is **B**. Here's why...", "B"),
        ("C. A pretty girl", "C"),
        ("Answer: **D**", "D"),
        ("(A) is incorrect. Final answer: D", "D"),
        ("The answer is C because I computed", "C"),
        ("Answer: A\n...\nAnswer: B", "B"),
        (r"\boxed{\Delta E} **Answer: D**", "D"),
        (r"so \boxed{C}", "C"),
        ("✅ Correct answer: **B. Blue.**", "B"),
        ("**Answer: D. D.**", "D"),
        ("The answer is B", "B"),
        ("Option B", "B"),
        ("**B**", "B"),
        ("b", "B"),
        ("(a)", "A"),
        ("A", "A"),
        ("A.", "A"),
        ("B) because it is round", "B"),
        ("The correct option is: C) 5", "C"),
        ("The answer is not A, it is B.", "B"),
        ("A is wrong, B is right", "B"),
        ("I think it's (C)", "C"),
        ("答案是C", "C"),
        ("<think>A</think><answer>B</answer>", "B"),
        ("<|begin_of_box|>C<|end_of_box|>", "C"),
        ("{'Reasoning': 'not A', 'Answer': 'B'}", "B"),
        ("A dog is in the picture", None),
        ("I see a cat", None),
        ("It is either A or B.", None),
        ("A, B", None),
        ("(A) is incorrect.", None),
        ("A. red\nB. blue\nC. green", None),
        ("E", None),
        ("", None),
        ("nan", None),
    ],
)
def test_choice_reader(text, letter):
    index = read_choice(text, ("first", "second", "third", "fourth"))
    assert (None if index is None else "ABCD"[index]) == letter


def test_pronoun_is_no_option_even_with_many():
    options = [f"option {i}" for i in range(10)]
    assert read_choice("The answer is C because I computed", options) == 2
    assert read_choice("I", options) == 8


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("13", 13),
        ("three", 3),
        ("**8**", 8),
        ("```json\n5\n```", 5),
        ("[4]", 4),
        ("twenty-five", 25),
        ("1,024", 1024),
        ("3.5", 3.5),
        ("There are three apples and two pears.", 3),
        ("15 + 27 = 42", 42),
        ("3 on the left and 2 on the right, so 5.", 5),
        ("2 red and 3 blue: 5 in total", 5),
        ("Region [0] holds 7 cups", 7),
        ("There is one cat.", 1),
        ("the one on the left", None),
        ("2-3", None),
        ("two or three", None),
        ("None", 0),
        ("There are no apples", 0),
        ("", None),
        ("nan", None),
    ],
)
def test_count_reader(text, count):
    assert read_count(text) == count


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Yes, ... a death notice", True),
        ("No, there is no cat.", False),
        ("There is no cat", False),
        ("The answer is no.", False),
        ("True", True),
        ("**Yes**", True),
        ("notice", None),
        ("yes or no", None),
        ("it may be yes, it may be no", None),
        ("", None),
    ],
)
def test_yes_no_reader(text, answer):
    assert read_yes_no(text) is answer


@pytest.mark.parametrize(
    ("text", "dimension", "metres"),
    [
        ("Region [0] is 48.47 centimeters", "", 0.4847),
        ("The width of Region [0] is 10.0 inches.", "width", 0.254),
        ("2'3\"", "", 27 * 0.0254),
        ("2 feet 3 inches", "", 27 * 0.0254),
        ("about 1.5 m wide and 2 m tall", "width", 1.5),
        ("about 1.5 m wide and 2 m tall", "height", 2.0),
        ("1 to 2 meters", "", 1.5),
        ("3 ft", "", 0.9144),
        ("Region [0]", "", None),
        ("", "", None),
    ],
)
def test_length_reader(text, dimension, metres):
    found = read_length(text, dimension)
    assert found == (None if metres is None else pytest.approx(metres))


WORDS = st.sampled_from(
    [
        *"A B (C) D. answer is not the yes no one two 3 - to or , . ** \\boxed{ }".split(),
        *"[ ] cm ' \" = total".split(),
    ]
)


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.text(), st.lists(WORDS, max_size=30).map(" ".join)))
def test_readers_take_any_text(text):
    for kind in ("grounding", "text", "choice", "count", "needle"):
        verdict = judge(sample(kind, "blue", (0, 0, 9, 9), OPTIONS), text, THOUSAND)
        assert verdict.correct == (verdict.failure == "")
    index = read_choice(text)
    assert index is None or 0 <= index < 8
    length = read_length(text, "width")
    assert length is None or length >= 0


@pytest.mark.parametrize("piece", ["answer ", "*", "\n", "(A) is ", "1 ", "9", "\\boxed{", "one "])
def test_long_hostile_texts_are_read_quickly(piece):
    started = time.process_time()
    for kind in ("text", "choice", "count"):
        judge(sample(kind, "3", choices=OPTIONS), piece * 20_000)
    read_length(piece * 20_000)
    assert time.process_time() - started < 10
