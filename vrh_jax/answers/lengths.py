"""Lengths in printed answers, with units, in metres."""

# ruff: noqa: RUF001 - such characters are in the texts that are read

import math
import re
from collections.abc import Iterator

from vrh_jax.answers.numbers import LIMIT, VALUE, digits, value
from vrh_jax.answers.words import plain, stated

_METRES = {
    r"mm|millimet(?:er|re)s?|毫米": 0.001,
    r"cm|centimet(?:er|re)s?|厘米": 0.01,
    r"dm|decimet(?:er|re)s?": 0.1,
    r"km|kilomet(?:er|re)s?|公里": 1000.0,
    r"[µμ]m|micromet(?:er|re)s?|microns?": 1e-6,
    r"m|met(?:er|re)s?|米": 1.0,
    r"in\.?|inch(?:es)?|英寸|\"|”|″|''": 0.0254,
    r"ft\.?|foot|feet|英尺|'|’|′": 0.3048,
    r"yds?\.?|yards?": 0.9144,
    r"mi|miles?": 1609.344,
}
_UNIT = "|".join(_METRES)
_NO_UNIT = r"(?![A-Za-z²³^]|/\s?(?:s|h|min|sec|hour)\b)"
_GAP = r"[\s-]{0,3}"
_LENGTH = re.compile(
    rf"(?<![\w.,\"'/+^-])(?:"
    rf"(?:between\s+(?P<low0>{VALUE})(?:{_GAP}(?P<unit0>{_UNIT}){_NO_UNIT})?\s*and"
    rf"|(?P<low1>{VALUE})(?:{_GAP}(?P<unit1>{_UNIT}){_NO_UNIT})?\s*(?:-|–|~|\bto\b))"
    rf"\s*(?P<high>{VALUE}){_GAP}(?P<unit>{_UNIT}){_NO_UNIT}"
    rf"|(?P<one>{VALUE}){_GAP}(?P<unit2>{_UNIT}){_NO_UNIT})",
    re.IGNORECASE,
)
_INCHES = re.compile(
    rf"\s*,?\s*(?:and\s+)?(?P<n>{VALUE})\s?(?:\"|”|″|''|in\b|inch(?:es)?\b)", re.IGNORECASE
)
_BARE_INCHES = re.compile(r"\s?(?P<n>[0-9]{1,2}(?:\.[0-9]+)?)(?![\w.])")
# "5 foot 3"; other numbers behind feet may count something.
_SPOKEN_INCHES = re.compile(
    r"\s(?P<n>[0-9]|1[01])(?=\s*(?:[.,;)]?\s*\Z|[,;)]|\.\s|tall\b|high\b|wide\b))", re.IGNORECASE
)
_CENTIMETRES = re.compile(
    r"\s+(?:and\s+)?(?P<n>[0-9]{1,2}(?:\.[0-9]+)?)\s?(?:cm|centimet(?:er|re)s?)\b", re.IGNORECASE
)
_ARTICLE = re.compile(
    r"\ban?\s+(?P<unit>met(?:er|re)|foot|inch|yard|mile|(?:centi|milli|kilo)met(?:er|re))\b",
    re.IGNORECASE,
)
# "in" before such words is no inch.
_PREPOSITION = re.compile(
    r"\s+(?:the|an?|this|that|these|total|each|my|your|his|her|its|our|all|front|width|height|"
    r"length|size|which|[0-9]{4})\b",
    re.IGNORECASE,
)
_WIDTH = re.compile(r"\b(?:wide|width|across|horizontal\w*)\b", re.IGNORECASE)
_HEIGHT = re.compile(r"\b(?:tall|high|height|vertical\w*)\b", re.IGNORECASE)
_REGION = re.compile(r"\bregions?\s*\[[0-9]{0,4}\]", re.IGNORECASE)


def read_length(text: object, dimension: str = "") -> float | None:
    """A length in metres: metric, imperial, feet and inches; a range counts as its middle.

    A declaration is read first, then the text.

    Args:
        text: the answer; "Region [0]" and other numbers without a unit are skipped.
        dimension: "width" or "height" picks among several lengths by the nearest word ("1.5 m
            wide and 2 m tall"); without a word the first length counts.
    """
    wanted = {"width": _WIDTH, "height": _HEIGHT}.get(dimension)
    for part in (stated(text), plain(text)[:LIMIT]):
        answer = digits(_REGION.sub(" ", part))
        lengths = list(_lengths(answer))
        named = [(w.start() + w.end()) / 2 for w in wanted.finditer(answer)] if wanted else []
        if len(lengths) > 1 and named:
            return min(lengths, key=lambda one: min(abs(n - one[0]) for n in named))[1]
        if lengths:
            return lengths[0][1]
    return None


def _lengths(answer: str) -> Iterator[tuple[float, float]]:
    """(place in the text, metres) of each length."""
    end = 0
    any_number = False
    for match in _LENGTH.finditer(answer):
        unit = match["unit"] or match["unit2"]
        if match.start() < end or (
            unit.lower() == "in" and _PREPOSITION.match(answer, match.end())
        ):
            continue
        any_number = True
        metres, end = _range(match) if match["unit"] else _single(match, answer)
        if math.isfinite(metres):
            yield (match.start() + end) / 2, metres
    if not any_number:
        for match in _ARTICLE.finditer(answer):
            yield (match.start() + match.end()) / 2, _factor(match["unit"])


def _factor(unit: str) -> float:
    return next(f for pattern, f in _METRES.items() if re.fullmatch(pattern, unit, re.IGNORECASE))


def _range(match: re.Match[str]) -> tuple[float, int]:
    """The middle of a range in metres, and where it ends."""
    unit = match["unit"]
    low = value(match["low0"] or match["low1"]) * _factor(match["unit0"] or match["unit1"] or unit)
    return (low + value(match["high"]) * _factor(unit)) / 2, match.end()


def _single(match: re.Match[str], answer: str) -> tuple[float, int]:
    """One length in metres with the smaller unit that may follow, and where it ends."""
    unit = _factor(match["unit2"])
    metres = value(match["one"]) * unit
    rest, smaller = None, 0.0254
    if unit == 0.3048:
        rest = _INCHES.match(answer, match.end())
        if not rest and match["unit2"] in "'’′":
            rest = _BARE_INCHES.match(answer, match.end())
        elif not rest:
            rest = _SPOKEN_INCHES.match(answer, match.end())
    elif unit == 1.0:
        rest, smaller = _CENTIMETRES.match(answer, match.end()), 0.01
    if rest:
        return metres + value(rest["n"]) * smaller, rest.end()
    return metres, match.end()
