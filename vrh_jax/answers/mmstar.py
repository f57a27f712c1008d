"""MMStar's rule for a right answer."""

import dataclasses
import re
from typing import TYPE_CHECKING

from vrh_jax.answers.choice import read_choice
from vrh_jax.answers.reading import Reading, choice_reading, expected_choice
from vrh_jax.answers.words import plain

if TYPE_CHECKING:
    from vrh_jax.data.sample import Sample

# "A dog is shown" opens with an article, "A because ..." with a letter.
_WORD_A = re.compile(r"a\s+(?!(?:or|and|is|was|because|since|as|for)\b)[a-z]")


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
        choice_reading(sample, read_choice(text, sample.choices)), official=official
    )


def _letter(sample: "Sample") -> str:
    index = expected_choice(sample.answer, sample.choices)
    return "" if index is None else chr(ord("A") + index)
