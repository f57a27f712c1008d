"""MathVista's rule for a right answer."""

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vrh_jax.answers.choice import read_choice
from vrh_jax.answers.numbers import read_count
from vrh_jax.answers.reading import NOTHING, Reading, choice_reading, number_reading
from vrh_jax.answers.words import declared, plain, stated

if TYPE_CHECKING:
    from vrh_jax.data.sample import Sample

# So many last lines are searched for a concluding number.
_LINES = 100


def mathvista(sample: "Sample", text: str) -> Reading:
    """MathVista (lupantech/MathVista, evaluation/calculate_score.py), its extraction by reader.

    Choices: letter or text, else the choice nearest by edit distance to a short stated answer
    (the official scorer does so even for an empty one). Integers are cut like
    ``int(float(x))``, floats rounded to ``precision``; lists are compared by value.
    """
    if sample.kind == "choice":
        for read in (read_choice, _by_number, _nearest):
            index = read(text, sample.choices)
            if index is not None:
                return choice_reading(sample, index)
        return NOTHING
    if sample.kind == "text":  # a list
        said, right = _numbers(stated(text)) or _numbers(plain(text)), _numbers(sample.answer)
        return Reading(str(said), said == right) if said else NOTHING
    number = _concluded(text)
    if number is None:
        return NOTHING
    if sample.precision is None:
        return number_reading(float(int(number)), float(sample.answer))
    return number_reading(number, float(sample.answer), sample.precision)


def _concluded(text: str) -> float | None:
    """The number stated, else that of the last line with digits, where the prompt asks for it."""
    said = stated(text)
    number = read_count(said) if said else None
    if number is not None:
        return number
    for line in reversed(plain(text).splitlines()[-_LINES:]):
        if re.search(r"[0-9]", line) and (number := read_count(line)) is not None:
            return number
    return read_count(text)


def _numbers(text: str) -> list[float]:
    """The last list of numbers in brackets, or []."""
    lists = re.findall(r"\[([^\[\]]*)\]", text)
    found = re.findall(r"-?[0-9]+(?:\.[0-9]+)?", lists[-1]) if lists else []
    numbers = [float(n) for n in found]
    return numbers if all(map(math.isfinite, numbers)) else []


def _by_number(text: str, choices: Sequence[str]) -> int | None:
    """The only option that is the concluded number: "3 + 4 = 7"."""
    number = _concluded(text)
    same = [i for i, choice in enumerate(choices) if read_count(choice) == number]
    return same[0] if number is not None and len(same) == 1 else None


def _nearest(text: str, choices: Sequence[str]) -> int | None:
    """The option nearest by edit distance to a stated answer that has a third in common with it.

    A longer text states no option; which one it is nearest to would depend on lengths alone.
    """
    said = declared(text).strip()
    longest = max((len(choice) for choice in choices), default=0)
    if not said or len(said) > 3 * longest:
        return None
    distances = [edit_distance(said, choice) for choice in choices]
    index = distances.index(min(distances))
    common = 3 * distances[index] <= 2 * max(len(said), len(choices[index]))
    return index if common else None


def edit_distance(a: str, b: str) -> int:
    """Levenshtein distance: fewest insertions, deletions and substitutions."""
    row = list(range(len(b) + 1))
    for i, char in enumerate(a, start=1):
        last, row[0] = row[0], i
        for j, other in enumerate(b, start=1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (char != other))
    return row[-1]
