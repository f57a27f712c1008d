"""When an answer to a question is right: the general rules, and those of single benchmarks.

Every rule reads a printed text into a ``Reading``. No text, "nan" and a text of which nothing can
be read are wrong and stay in the denominator. Official scorers that ask a language model are
replaced by these deterministic readers; docs/benchmarks.md says what was kept and what was not.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from vrh_jax.answers.choice import read_choice
from vrh_jax.answers.numbers import read_count, read_length
from vrh_jax.answers.words import declared, normalise, plain, read_yes_no, stated

if TYPE_CHECKING:
    from vrh_jax.data.sample import Sample

_YES_NO = {"yes": True, "true": True, "no": False, "false": False}
# SpatialRGPT's success: between these multiples of the true size, both inclusive.
SUCCESS = (0.75, 1.25)
# Spatial457's shapes by super-category; its official scorer accepts any shape of the same one.
SUPER_CATEGORIES = {
    "car": "suv wagon minivan sedan truck addi car",
    "bus": "articulated regular double school bus",
    "motorbike": "chopper dirtbike scooter cruiser motorbike",
    "aeroplane": "jet fighter biplane airliner aeroplane",
    "bicycle": "road utility mountain tandem bicycle",
}
# So many last lines are searched for a concluding number.
_LINES = 100
# "A dog is shown" opens with an article, "A because ..." with a letter.
_WORD_A = re.compile(r"a\s+(?!(?:or|and|is|was|because|since|as|for)\b)[a-z]")
_SUPER = {word: name for name, words in SUPER_CATEGORIES.items() for word in words.split()}


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


def read_answer(sample: "Sample", text: object) -> Reading:
    """Read and judge the answer to a question by its benchmark's rule; throws on no text.

    Raises:
        ValueError: the sample's rule is unknown.
    """
    if sample.rule not in RULES:
        raise ValueError(f"sample {sample.id!r}: no rule {sample.rule!r} (known: {sorted(RULES)})")
    if not isinstance(text, str) or text.strip().lower() in ("", "nan"):
        return NOTHING
    return RULES[sample.rule](sample, text)


def by_kind(sample: "Sample", text: str) -> Reading:
    """The general rule of each kind of question."""
    if sample.kind == "choice":
        return _choice(sample, read_choice(text, sample.choices))
    if sample.kind == "needle":
        said, needle = (f" {normalise(t)} " for t in (plain(text), sample.answer))
        return Reading(said.strip(), bool(said.strip()) and needle in said)
    if sample.kind == "number" and sample.unit:
        length = read_length(f"{sample.answer} {sample.unit}")
        if length is not None:  # other units, such as kg, are not converted
            return _number(read_length(text), length)
    expected = normalise(sample.answer)
    if expected in _YES_NO:
        answer = read_yes_no(text)
        return NOTHING if answer is None else Reading(_word(answer), answer == _YES_NO[expected])
    if sample.kind in ("count", "number") or (_is_number(expected) and " " not in expected):
        return _number(read_count(text), read_count(expected), sample.precision)
    said = normalise(declared(text))
    return Reading(said, bool(said) and said == expected)


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


def _word(answer: bool) -> str:
    return "yes" if answer else "no"


def _choice(sample: "Sample", index: int | None) -> Reading:
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


def _number(said: float | None, expected: float | None, precision: int | None = None) -> Reading:
    if said is None:
        return NOTHING
    if expected is None:
        return Reading(f"{said:.12g}")
    if precision is not None:
        said, expected = round(said, precision), round(expected, precision)
    # Unit conversion leaves rounding noise, so equality is relative.
    return Reading(f"{said:.12g}", abs(said - expected) <= 1e-9 * max(abs(said), abs(expected)))


def mmstar(sample: "Sample", text: str) -> Reading:
    """MMStar: a letter where the official scorer looks for it, else the general reader.

    ``official`` is that scorer's verdict (MMStar-Benchmark/MMStar, eval/vlmeval/evaluate/
    mmstar.py): the character at the start, after "(", "option " or "the answer is ". It also
    takes the A of "Answer: B" for the option, which ``correct`` does not.
    """
    said = plain(text).lower().strip().replace("\n", " ")
    right = _letter(sample).lower()
    official, letter = False, ""
    for opening in ("", "(", "option ", "the answer is "):
        if said.startswith(opening):
            rest = said[len(opening) :]
            official = official or bool(right and rest.startswith(right))
            alone = re.match(r"[a-d](?![\w'\u2019])", rest)
            letter = letter or (alone[0] if alone and not _WORD_A.match(rest) else "")
    if letter:
        return Reading(letter.upper(), letter == right, official)
    return dataclasses.replace(
        _choice(sample, read_choice(text, sample.choices)), official=official
    )


def _letter(sample: "Sample") -> str:
    index = expected_choice(sample.answer, sample.choices)
    return "" if index is None else chr(ord("A") + index)


def spatial_size(sample: "Sample", text: str) -> Reading:
    """SpatialRGPT-Bench sizes: 0.75 gt <= pred <= 1.25 gt, both in metres.

    ``category`` (width_data or height_data) says which length of several is meant.
    """
    said = read_length(text, sample.category.partition("_")[0])
    if said is None:
        return NOTHING
    low, high = SUCCESS
    return Reading(
        f"{said:.12g}", low * float(sample.answer) <= said <= high * float(sample.answer)
    )


def spatial457(sample: "Sample", text: str) -> Reading:
    """Spatial457, strict: the same value, however it is written (case, number word, True, yes).

    ``official`` adds the leniencies of the official scorer (see ``spatial457_leniency``).
    """
    said, expected = normalise(declared(text)), normalise(sample.answer)
    answer = read_yes_no(text) if expected in _YES_NO else None
    count = read_count(text) if _is_number(expected) else None
    if not said:
        return NOTHING
    if answer is not None:
        reading = Reading(_word(answer), answer == _YES_NO[expected])
    elif count is not None:
        reading = _number(count, read_count(expected))
    else:
        reading = Reading(said, said == expected)
    lenient = reading.correct or bool(spatial457_leniency(reading.value, expected))
    return dataclasses.replace(reading, official=lenient)


def _is_number(text: str) -> bool:
    return read_count(text) is not None and text not in {*_YES_NO, "none"}


def spatial457_leniency(said: str, expected: str) -> str:
    """Which leniency of the official Spatial457 scorer makes a wrong reading right.

    Source: VLMEvalKit, vlmeval/dataset/utils/spatial457.py. Returns "" for none, or
    ``none_is_no``, ``zero_is_no``, ``number_is_yes``, ``super_category``.
    """
    said, expected = normalise(said), normalise(expected)
    truth = _YES_NO.get(expected)
    if truth is False and said == "none":
        return "none_is_no"
    if truth is False and said == "0":
        return "zero_is_no"
    if truth is True and re.fullmatch("[1-9]", said):
        return "number_is_yes"
    first, other = (_SUPER.get(text.split(" ")[0]) for text in (said, expected))
    return "super_category" if first and first == other else ""


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
                return _choice(sample, index)
        return NOTHING
    if sample.kind == "text":  # a list
        said, right = _numbers(stated(text)) or _numbers(plain(text)), _numbers(sample.answer)
        return Reading(str(said), said == right) if said else NOTHING
    number = _concluded(text)
    if number is None:
        return NOTHING
    if sample.precision is None:
        return _number(float(int(number)), float(sample.answer))
    return _number(number, float(sample.answer), sample.precision)


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


RULES: dict[str, Callable[["Sample", str], Reading]] = {
    "": by_kind,
    "countbench": by_kind,
    "cv_bench": by_kind,
    "mathvista": mathvista,
    "mmstar": mmstar,
    "spatial457": spatial457,
    "spatialrgpt": spatial_size,
    "vaw": by_kind,
}
