"""Readers of choices, counts, lengths and yes or no, case by case; linear time on any text."""

# ruff: noqa: RUF001 - such characters are in the texts that are read

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vrh_jax.answers import read_choice, read_count, read_length, read_yes_no

OPTIONS = ("red", "blue", "dark blue", "green")
CHOICES = [
    ("The answer is b.", "B"),
    ("answer: (c)", "C"),
    ("b)", "B"),
    ("(b) blue", "B"),
    ("I would choose option C.", "C"),
    ("My answer: C", "C"),
    ("C: dark blue", "C"),
    ("C - dark blue", "C"),
    ("Choice B", "B"),
    ("The correct choice is B, because A shows red", "B"),
    ("B or C", None),
    ("Answer: A or B", None),
    ("Answer: B, not A", "B"),
    ("It's A", "A"),
    ("It is a red thing", "A"),
    ("A: red B: blue", None),
    ("A: red\nB: blue\nC: dark blue\nD: green\nAnswer: D", "D"),
    ("Option A is incorrect because it is dark. Therefore B", "B"),
    ("Not B. C.", "C"),
    ("\\boxed{\\text{B}}", "B"),
    ("\\boxed{\\text{(B)}}", "B"),
    ("$\\boxed{B}$", "B"),
    ("\\boxed{B. blue}", "B"),
    ("\\textbf{B}", "B"),
    ("Answer:\n\nB", "B"),
    ("**Answer**: B", "B"),
    ("**Answer:** B", "B"),
    ("### Answer\nB", "B"),
    ("The answer is:\n\n**B. blue**", "B"),
    ("Final Answer: \\boxed{C}", "C"),
    ("Therefore, the correct answer is (C) 5 cm.", "C"),
    ("answer is option B", "B"),
    ("The answer is option (B).", "B"),
    ("The best answer is B", "B"),
    ("Correct answer - B", "B"),
    ("答案：B", "B"),
    ("选B", "B"),
    ("选择 B", "B"),
    ("The answer is **not** A. It is B.", "B"),
    ("A is the correct answer", "A"),
    ("B is correct.", "B"),
    ("Option C is the correct one, while A is close", "C"),
    ("Among A, B, C, and D, the answer is C", "C"),
    ("I'd go with D", "D"),
    ('{"answer": "B"}', "B"),
    ('{"choice": "B"}', "B"),
    ("<answer>B. blue</answer>", "B"),
    ('answer: "B"', "B"),
    ("The answer is a red dog.", "A"),
    ("The answer is red.", "A"),
    ("The object is green, so the answer is D", "D"),
    ("Blue", "B"),
    ("blue.", "B"),
    ("It is blue", "B"),
    ("The color is dark blue", "C"),
    ("not red but blue", None),
    ("It isn't red; it's green.", None),
    ("A. red is wrong. D.", "D"),
    ("A\n\nExplanation: B is wrong since it is blue.", "A"),
    ("A\n\nThe image shows a red thing", "A"),
    ("(A)", "A"),
    ("[B]", "B"),
    ("B</s>", "B"),
    ("B<|im_end|>", "B"),
    ("Answer: A\n\nWait, actually the answer is B", "B"),
    ("The correct answer is A. red", "A"),
    ("I think the answer is A", "A"),
    ("I think A is right", "A"),
    ("the answer: A", "A"),
    ("Answer is A because", "A"),
    ("Answer A", "A"),
    ("A because it is red", "A"),
    ("A is wrong, B is wrong, C is wrong", None),
    ("Neither A nor B", None),
    ("The answer could be A, but it is more likely B.", None),
    ("The answer is either A or B.", None),
    ("The answer cannot be determined", None),
    ("D. None of the above", "D"),
    ("Sorry, I can't answer.", None),
    ("As an AI, I cannot", None),
    ("answer: E", None),
    ("The answer is $\\text{C}$", "C"),
    ("The final answer is: $\\boxed{C}$", "C"),
    ("**C**\n\nBecause A is dark", "C"),
    ("Answer: C) dark blue", "C"),
    ("Answer:C", "C"),
    ("ANSWER: C", "C"),
    ("The answer is (C), not (D).", "C"),
    ("Both A and C", None),
    ("A and C", None),
    ("The answer is B and not C", "B"),
    ("Hence, B.", "B"),
    ("So the answer is B!", "B"),
    ("The correct option letter is B", "B"),
    ("Option letter: B", "B"),
    ("The letter is B", "B"),
    ("B.\n", "B"),
    (" B ", "B"),
    ("B:", "B"),
    ("b", "B"),
    ("`B`", "B"),
    ("'B'", "B"),
    ("_B_", "B"),
    ("B，", "B"),
    ("（B）", "B"),
    ("Ｂ", "B"),
    ("the man is wearing a red shirt", "A"),
    ("The answer is B: C is too dark", "B"),
    ("I choose B since A and C are wrong", "B"),
    ("First, A is possible. Second, B. My final choice: C", "C"),
    ("A. The answer is D.", "D"),
    ("Answer: I", None),
    ("Is it A? No. Is it B? Yes.", None),
]
COUNTS = [
    ("有三只狗", 3),
    ("共有5个", 5),
    ("There are 9 in total: 4 on top, 5 below", 9),
    ("In 2019, 4 people", 4),
    ("13", 13),
    ("three", 3),
    ("Three.", 3),
    ("3 apples", 3),
    ("There are 3.", 3),
    ("a dozen", 12),
    ("two dozen", 24),
    ("half a dozen", 6),
    ("a couple", 2),
    ("a pair of", 2),
    ("one hundred and five", 105),
    ("one hundred", 100),
    ("two hundred fifty-one", 251),
    ("1,234", 1234),
    ("1,234,567.5", 1234567.5),
    ("3,5", None),
    ("-4", -4),
    ("−4", -4),
    ("12%", 12),
    ("$1,200", 1200),
    ("about 7", 7),
    ("approximately 7 cups", 7),
    ("5 or 6", None),
    ("5-6", None),
    ("between 5 and 6", None),
    ("from 5 to 6", None),
    ("at least 5", 5),
    ("3 + 2 = 5", 5),
    ("2 cats and 3 dogs, for a total of 5 animals", 5),
    ("\\boxed{7}", 7),
    ("The answer is 7.", 7),
    ("Answer: **7**", 7),
    ("There are **7** cats.", 7),
    ("7 cats (2 black)", 7),
    ("1. cat\n2. dog\n3. bird\nTotal: 3", 3),
    ("Let me count: 1, 2, 3, 4. There are 4 apples.", 4),
    ("1, 2, 3, 4, 5", None),
    ("In the image, there are four (4) cats", 4),
    ("zero", 0),
    ("no cats", 0),
    ("There aren't any cats", 0),
    ("none", 0),
    ("No.", 0),
    ("twenty one", 21),
    ("twenty-one", 21),
    ("2.0", 2),
    ("2.", 2),
    ("1/2", 0.5),
    ("3/4", 0.75),
    ("1 1/2", 1.5),
    ("½", 0.5),
    ("2½", 2.5),
    ("one third", 0.3333333333333333),
    ("half", 0.5),
    ("1e3", 1000),
    ("1.5e-3", 0.0015),
    ("5th", None),
    ("The 3rd one", None),
    ("Figure 2 shows 5 cats", 5),
    ("Option B", None),
    ("B", None),
    ("seven people in 2 rows", 7),
    ("one of the 5 dogs", 5),
    ("There are 5 dogs. One is brown.", 5),
    ("The one on the left", None),
    ("Someone", None),
    ("tent", None),
    ("often", None),
    ("ten", 10),
    ("eleven.", 11),
    ("3 ", 3),
    ("<|begin_of_box|>8<|end_of_box|>", 8),
    ('```json\n{"count": 4}\n```', 4),
    ('{"answer": 4}', 4),
    ("x = 4", 4),
    ("4 m", 4),
    ("４", 4),
    ("三", 3),
    ("-", None),
    ("2x10^3", 2000),
    ("2 x 10^3", 2000),
]
LENGTHS = [
    ("80厘米", "", 0.8),
    ("1.2米", "", 1.2),
    ("about 5 foot 3", "", 1.6002),
    ("5 feet 3 of them", "", 1.524),
    ("48.47 centimeters", "", 0.4847),
    ("2'3\"", "", 0.6858),
    ("2' 3\"", "", 0.6858),
    ("2’3”", "", 0.6858),
    ("2 ft 3 in", "", 0.6858),
    ("2 feet, 3 inches", "", 0.6858),
    ("2 feet and 3 inches", "", 0.6858),
    ("2-foot", "", 0.6096),
    ("6-inch", "", 0.1524),
    ("6 in.", "", 0.1524),
    ("5 feet 10.5 inches", "", 1.7907),
    ("1.5 m", "", 1.5),
    ("1.5m", "", 1.5),
    ("1,200 mm", "", 1.2),
    ("1,5 m", "", None),
    ("about 3 meters", "", 3),
    ("3 to 4 feet", "", 1.0668),
    ("3-4 feet", "", 1.0668),
    ("between 3 and 4 feet", "", 1.0668),
    ("3 feet to 4 feet", "", 1.0668),
    ("30 cm to 1 m", "", 0.65),
    ("two meters", "", 2),
    ("one and a half meters", "", 1.5),
    ("1 1/2 feet", "", 0.4572),
    ("half a meter", "", 0.5),
    ("a meter", "", 1),
    ("a foot", "", 0.3048),
    ("3/4 inch", "", 0.01905),
    ("½ inch", "", 0.0127),
    ("3 yards", "", 2.7432),
    ("0.5 km", "", 500),
    ("100", "", None),
    ("Region [0] is 48.47 centimeters wide", "width", 0.4847),
    ("Region [1] is 1.2 m", "", 1.2),
    ("The width is 1.5 m and the height is 2 m", "height", 2),
    ("The height of Region [0] is 2 m, and its width is 1.5 m.", "width", 1.5),
    ("width: 1.5 m, height: 2 m", "height", 2),
    ("1.5 m x 2 m", "", 1.5),
    ("5'", "", 1.524),
    ('11"', "", 0.2794),
    ("it's 3 m", "", 3),
    ("1.75 metres (5 ft 9 in)", "", 1.75),
    ("3 feet (0.91 m)", "", 0.9144),
    ("12 inches or 30 cm", "", 0.3048),
    ("2 m 30 cm", "", 2.3),
    ("1 meter and 20 centimeters", "", 1.2),
    ("-3 m", "", None),
    ("3 min", "", None),
    ("3 minutes", "", None),
    ("4 mm", "", 0.004),
    ("10 µm", "", 1e-05),
    ("1e2 cm", "", 1),
    ("3 M", "", 3),
    ("3 Meters", "", 3),
    ("10.0 inches.", "", 0.254),
    ("roughly 0.25", "", None),
    ("4 in the room", "", None),
    ("in 2020", "", None),
    ("2 people in the image; 1.5 m", "", 1.5),
    ("3 m²", "", None),
    ("5 m/s", "", None),
    ("The answer is 4 feet.", "", 1.2192),
    ("First guess 3 m. Final answer: 4 m", "", 4),
    ("\\boxed{4 m}", "", 4),
    ("\\boxed{4\\text{ m}}", "", 4),
    ("**1.5** meters", "", 1.5),
    ("1.5 **m**", "", 1.5),
    ("**Width:** 1.5 m", "width", 1.5),
]
YES_NO = [
    ("不是的", False),
    ("是的，有。", True),
    ("Yes", True),
    ("no", False),
    ("Yes, ... a death notice", True),
    ("No, it's not", False),
    ("Nope", False),
    ("Yeah", True),
    ("Yep.", True),
    ("Correct.", None),
    ("True", True),
    ("False", False),
    ("It is not true that it is yes", None),
    ("The answer is yes", True),
    ("The statement is false.", False),
    ("\\boxed{yes}", True),
    ("**No**", False),
    ("Answer: No", False),
    ("yes or no? No", False),
    ("There is no cat, so the answer is no.", False),
    ("There is no doubt: yes", True),
    ("No doubt, yes.", True),
    ("Not sure", None),
    ("是", True),
    ("否", False),
    ("是的", True),
    ("不是", False),
    ("<answer>yes</answer>", True),
    ("y", True),
    ("n", False),
    ("nothing", None),
    ("I know", None),
    ("Answer: yes\nAnswer: no", False),
    ("Yes and no", None),
    ("Definitely yes!", True),
    ("No, the answer is yes", True),
    ("It isn't", None),
]


@pytest.mark.parametrize(("text", "letter"), CHOICES)
def test_choices(text, letter):
    index = read_choice(text, OPTIONS)
    assert (None if index is None else "ABCD"[index]) == letter


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("Yes, because no cat is visible.", 0),
        ("No. Yes would need a cat.", 1),
        ("**No**, not yes", 1),
        ("Yes, no", None),
        ("Yes or no, that depends", None),
    ],
)
def test_an_option_that_opens_the_answer(text, index):
    assert read_choice(text, ("Yes", "No")) == index


@pytest.mark.parametrize("letter", "ABCDEFGH")
@pytest.mark.parametrize(
    "form",
    ["{}", "({})", "{}.", "**{}**", "Answer: {}", "The answer is ({}).", "\\boxed{{{}}}",
     "Option {}", "{}: yes", "<answer>{}</answer>", "(A) is incorrect. Final answer: {}"],
)  # fmt: skip
def test_all_letters(form, letter):
    assert read_choice(form.format(letter), ()) == "ABCDEFGH".index(letter)
    assert read_choice(form.format(letter), [f"text {i}" for i in range(8)]) == "ABCDEFGH".index(
        letter
    )


@given(st.lists(st.sampled_from("ABCD"), min_size=1, max_size=5))
def test_the_last_declaration_wins(letters):
    text = "\n".join(f"Step {i}. The answer is {x}." for i, x in enumerate(letters))
    assert read_choice(text, OPTIONS) == "ABCD".index(letters[-1])


@pytest.mark.parametrize(("text", "count"), COUNTS)
def test_counts(text, count):
    found = read_count(text)
    assert found == (None if count is None else pytest.approx(count))


@given(st.integers(0, 999_999))
def test_numbers_in_words_and_digits(n):
    assert read_count(spelled(n)) == n
    assert read_count(f"There are {spelled(n)} of them.") == n
    assert read_count(f"**{n:,}**") == n


def spelled(n):
    """An independent speller: 251 -> "two hundred and fifty-one"."""
    small = "zero one two three four five six seven eight nine ten eleven twelve thirteen".split()
    small += "fourteen fifteen sixteen seventeen eighteen nineteen".split()
    tens = "twenty thirty forty fifty sixty seventy eighty ninety".split()
    if n < 20:
        return small[n]
    if n < 100:
        return tens[n // 10 - 2] + (f"-{small[n % 10]}" if n % 10 else "")
    if n < 1000:
        return f"{small[n // 100]} hundred" + (f" and {spelled(n % 100)}" if n % 100 else "")
    return f"{spelled(n // 1000)} thousand" + (f" {spelled(n % 1000)}" if n % 1000 else "")


@pytest.mark.parametrize(("text", "dimension", "metres"), LENGTHS)
def test_lengths(text, dimension, metres):
    found = read_length(text, dimension)
    assert found == (None if metres is None else pytest.approx(metres))


@given(
    st.floats(0.01, 5000).map(lambda v: round(v, 2)),
    st.sampled_from(
        [("cm", 0.01), ("meters", 1), ("feet", 0.3048), ("inches", 0.0254), ("mm", 0.001)]
    ),
    st.sampled_from(
        ["{} {}", "Region [0] is {} {} wide.", "about **{}** {}", "\\boxed{{{}\\text{{ {}}}}}"]
    ),
)
def test_lengths_in_any_unit(number, unit, form):
    assert read_length(form.format(number, unit[0])) == pytest.approx(number * unit[1])


@pytest.mark.parametrize(("text", "answer"), YES_NO)
def test_yes_no(text, answer):
    assert read_yes_no(text) is answer


PIECES = (
    "A ", "B", "answer ", "answer: ", "(A) is ", "A, ", "not ", "neither A nor ", "*", "\n", "1 ",
    "9", "1,", "1/", "1 to ", "1-", "one ", "one hundred and ", "two and a half ", "between 1 and ",
    "{", "\\boxed{", "\\text{", '"answer": ', "'", "1'", "1 m ", "1 ft ", "in ", "half a ",
    "yes ", "no ", "1e", "Region [",
    "2x10^", "$", "<|", "```", "dozen ", "choose ", "is correct ", "1. ",
)  # fmt: skip


@pytest.mark.parametrize("piece", PIECES)
def test_time_is_linear(piece):
    def seconds(size):
        text = (piece * size)[:size]
        started = time.process_time()
        read_choice(text, OPTIONS)
        read_count(text)
        read_length(text, "width")
        read_yes_no(text)
        return time.process_time() - started

    short = min(seconds(2_000) for _ in range(2))
    assert min(seconds(20_000) for _ in range(2)) < max(40 * short, 0.3)


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=30).map("".join)))
def test_readers_take_any_text(text):
    index = read_choice(text, OPTIONS)
    assert index is None or 0 <= index < 4
    assert read_yes_no(text) in (True, False, None)
    count, length = read_count(text), read_length(text, "height")
    assert count is None or isinstance(count, float)
    assert length is None or length >= 0
