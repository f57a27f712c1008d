"""What was read from the answer to a question, and the general rule when it is right."""

import dataclasses
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vrh_jax.answers.choice import read_choice
from vrh_jax.answers.lengths import read_length
from vrh_jax.answers.numbers import read_count
from vrh_jax.answers.words import declared, normalise, plain, read_yes_no

if TYPE_CHECKING:
    from vrh_jax.data.sample import Sample

YES_NO = {"yes": True, "true": True, "no": False, "false": False}


@dataclasses.dataclass(frozen=True)
class Reading:
    """What was read from an answer.

    Attributes:
        value: the choice's text, the number, yes or no, or the words; "" if nothing was read.
        correct: whether it is right.
        official: whether the benchmark's own scorer calls it right, where that may differ.
    """

    value: str = ""
    correct: bool = False
    official: bool | None = None


NOTHING = Reading()


def by_kind(sample: "Sample", text: str) -> Reading:
    """The general rule of each kind of question."""
    if sample.kind == "choice":
        return choice_reading(sample, read_choice(text, sample.choices))
    if sample.kind == "needle":
        said, needle = (f" {normalise(t)} " for t in (plain(text), sample.answer))
        return Reading(said.strip(), bool(said.strip()) and needle in said)
    if sample.kind == "number" and sample.unit:
        length = read_length(f"{sample.answer} {sample.unit}")
        if length is not None:  # other units, such as kg, are not converted
            return number_reading(read_length(text), length)
    expected = normalise(sample.answer)
    if expected in YES_NO:
        answer = read_yes_no(text)
        return NOTHING if answer is None else yes_no_reading(answer, expected)
    if sample.kind in ("count", "number") or (is_number(expected) and " " not in expected):
        return number_reading(read_count(text), read_count(expected), sample.precision)
    said = normalise(declared(text))
    return Reading(said, bool(said) and said == expected)


def yes_no_reading(answer: bool, expected: str) -> Reading:
    """yes or no; ``expected`` is a key of YES_NO."""
    return Reading("yes" if answer else "no", answer == YES_NO[expected])


def choice_reading(sample: "Sample", index: int | None) -> Reading:
    """An option by its index; None if none was read."""
    if index is None:
        return NOTHING
    letter = chr(ord("A") + index)
    right = expected_choice(sample.answer, sample.choices)
    if not sample.choices:
        return Reading(letter, index == right)
    # By text, since an option may be printed twice.
    said = sample.choices[index]
    return Reading(
        said or letter, index == right or (right is not None and said == sample.choices[right])
    )


def expected_choice(answer: str, choices: Sequence[str]) -> int | None:
    """Index of the right option; the answer is its text (first) or its letter, "C" or "(C)"."""
    for form in (str, str.strip, _folded, normalise):
        same = [i for i, choice in enumerate(choices) if form(choice) == form(answer)]
        if same and form(answer):
            return same[0]
    letter = re.fullmatch(r"\W*([A-Za-z])\W*", answer)
    if letter:
        index = ord(letter[1].upper()) - ord("A")
        return index if not choices or index < len(choices) else None
    return None


def _folded(text: str) -> str:
    return text.strip().casefold()


def number_reading(
    said: float | None, expected: float | None, precision: int | None = None
) -> Reading:
    """A number, or None if none was read, compared after rounding to ``precision`` decimals."""
    if said is None:
        return NOTHING
    if expected is None:
        return Reading(f"{said:.12g}")
    if precision is not None:
        said, expected = round(said, precision), round(expected, precision)
    # Unit conversion leaves rounding noise, so equality is relative.
    return Reading(f"{said:.12g}", abs(said - expected) <= 1e-9 * max(abs(said), abs(expected)))


def is_number(text: str) -> bool:
    """Whether an expected answer is a number, in digits or words."""
    return read_count(text) is not None and text not in {*YES_NO, "none"}
