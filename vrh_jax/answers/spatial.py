"""The rules of SpatialRGPT-Bench and Spatial457 for a right answer."""

import dataclasses
import re
from typing import TYPE_CHECKING

from vrh_jax.answers.lengths import read_length
from vrh_jax.answers.numbers import read_count
from vrh_jax.answers.reading import (
    NOTHING,
    YES_NO,
    Reading,
    is_number,
    number_reading,
    yes_no_reading,
)
from vrh_jax.answers.words import declared, normalise, read_yes_no

if TYPE_CHECKING:
    from vrh_jax.data.sample import Sample

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
_SUPER = {word: name for name, words in SUPER_CATEGORIES.items() for word in words.split()}


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
    answer = read_yes_no(text) if expected in YES_NO else None
    count = read_count(text) if is_number(expected) else None
    if not said:
        return NOTHING
    if answer is not None:
        reading = yes_no_reading(answer, expected)
    elif count is not None:
        reading = number_reading(count, read_count(expected))
    else:
        reading = Reading(said, said == expected)
    lenient = reading.correct or bool(spatial457_leniency(reading.value, expected))
    return dataclasses.replace(reading, official=lenient)


def spatial457_leniency(said: str, expected: str) -> str:
    """Which leniency of the official Spatial457 scorer makes a wrong reading right.

    Source: VLMEvalKit, vlmeval/dataset/utils/spatial457.py. Returns "" for none, or
    ``none_is_no``, ``zero_is_no``, ``number_is_yes``, ``super_category``.
    """
    said, expected = normalise(said), normalise(expected)
    truth = YES_NO.get(expected)
    if truth is False and said == "none":
        return "none_is_no"
    if truth is False and said == "0":
        return "zero_is_no"
    if truth is True and re.fullmatch("[1-9]", said):
        return "number_is_yes"
    first, other = (_SUPER.get(text.split(" ")[0]) for text in (said, expected))
    return "super_category" if first and first == other else ""
