"""Numbers in printed answers: counts, decimals, fractions, number words, and lengths with units."""

# ruff: noqa: RUF001 - such characters are in the texts that are read

import math
import re
from collections.abc import Iterator

from vrh_jax.answers.words import normalise, plain, stated

# Long texts are read up to here; a statement is read wherever it stands.
_LIMIT = 20_000
_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_SMALL = {word: n for n, word in enumerate(_UNITS)} | {
    word: 10 * n for n, word in enumerate(_TENS, start=2)
}
_POWERS = {"hundred": 100, "thousand": 1000, "million": 1_000_000}
_CHINESE = {c: n for n, c in enumerate("零一二三四五六七八九十")} | {"两": 2}
_FRACTIONS = {"½": "1/2", "¼": "1/4", "¾": "3/4", "⅓": "1/3", "⅔": "2/3", "⅛": "1/8"}
_PHRASES = {
    r"half a dozen": "6",
    r"(?:a|one) dozen": "12",
    r"(?:a couple|a pair)(?: of)?": "2",
    r"(?:a )?half (?:an?|of an?)": "0.5",
    r"(?:an? |one )?half": "0.5",
    r"(?:a|one) quarter(?: of an?)?": "0.25",
    r"three quarters(?: of an?)?": "0.75",
    r"(?:a|one) third(?: of an?)?": "1/3",
    r"two thirds(?: of an?)?": "2/3",
}
_AND_A_HALF = re.compile(rf"\b({'|'.join(_SMALL)}|[0-9]{{1,9}})\s+and\s+a\s+half\b", re.IGNORECASE)
_PHRASE = re.compile("|".join(rf"\b(?P<p{i}>{p})\b" for i, p in enumerate(_PHRASES)), re.IGNORECASE)
_WORD = "|".join([*_SMALL, *_POWERS])
_NAMED = re.compile(rf"\b(?:{_WORD})(?:(?:[- ]|\s+and\s+)(?:{_WORD})){{0,12}}\b", re.IGNORECASE)
_DOZEN = re.compile(r"(?<![\w.])([0-9]{1,9})\s+dozen\b", re.IGNORECASE)
_PRONOUN = re.compile(
    r"\b(?:the|this|that|each|every|any|no|which|left|right|first|second|last|only|other|same|"
    r"[0-9]{1,3}(?:st|nd|rd|th))\s+\Z",
    re.IGNORECASE,
)

_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]++)"
_VALUE = (
    rf"(?:[0-9]{{1,9}}\s+[0-9]{{1,9}}/[0-9]{{1,9}}|[0-9]{{1,9}}/[0-9]{{1,9}}"
    rf"|(?:{_DIGITS}(?:\.[0-9]++)?|\.[0-9]++)"
    rf"(?:[eE][+-]?[0-9]{{1,3}}|\s?[x×*]\s?10\^?\{{?[+-]?[0-9]{{1,3}}\}}?)?+)"
)
_NUMBER = re.compile(rf"(?<![\w.,/^])([+-]?{_VALUE})(?P<percent>\s?%)?(?!\w|[.,][0-9]|/[0-9]|\^)")
_RANGE = re.compile(
    rf"(?<![\w.,])(?:\bbetween\s+{_VALUE}\s+and\s+{_VALUE}"
    rf"|{_VALUE}\s*(?:-|–|~|\bto\b|\bor\b)\s*{_VALUE})(?![\w.]?[0-9])",
    re.IGNORECASE,
)
_LABEL = re.compile(
    r"(?:\b(?:region|figure|fig\.?|image|step|row|column|option|question|section|number)"
    r"\s?[\[(#]?\s?[0-9]{1,4}\s?[\])]?(?=[\s:.,;?!'’]|\Z)|^[ \t]*[0-9]{1,3}[.)][ \t]+(?=\S))",
    re.IGNORECASE | re.MULTILINE,
)
_ONE_OF = re.compile(r"\bone of(?= (?:the|these|those|our|its|his|her|their)\b)", re.IGNORECASE)
_YEAR = re.compile(r"\b(?:in|since|from|year)\s(?:19|20)[0-9]{2}(?=,)", re.IGNORECASE)
# Chinese: "5个", "有三只狗".
_MEASURE = "个只条匹辆张把人位本朵头棵杯"
_BESIDE_CHINESE = re.compile(r"(?<=[0-9])(?=[\u4e00-\u9fff])|(?<=[\u4e00-\u9fff])(?=[0-9])")
_CHINESE_COUNT = re.compile(
    rf"(?<![零一二三四五六七八九十百第两])([零一二三四五六七八九十两])(?=[{_MEASURE}])"
)
_ENUMERATION = re.compile(r"(?<![\w.,])1(?:\s?,\s?(?:and\s)?[0-9]{1,3}){2,200}+(?![\w,])")
_TOTAL_AFTER = re.compile(r"\s*(?:\w+\s+){0,3}?(?:in total|altogether|overall)", re.IGNORECASE)
_TOTAL_BEFORE = re.compile(
    r"(?:=|(?<!\bin )\b(?:total(?:\s+(?:of|is|number))?|so|therefore|thus|altogether))\W+"
    r"(?:\w+\s+){0,3}?\Z",
    re.IGNORECASE,
)
_NOTHING = re.compile(r"\b(?:none|no|nothing|(?:not|n['’]t)\s+any)\b|n['’]t any\b", re.IGNORECASE)


def read_count(text: object) -> float | None:
    """The number that an answer commits to, in digits or words; None without one.

    A declaration is read first, then the text. Several numbers: the one called a total ("= 5",
    "so 5", "5 in total"), else the first. A range ("2-3", "two or three") is no commitment;
    ordinals, labels ("Region [0]", "Figure 2"), list marks and counting aloud ("1, 2, 3") are
    skipped. "none" and "no ..." alone are 0; "12%" is 12.
    """
    said = stated(text)
    found = _commitment(said) if said else None
    return _commitment(plain(text)[:_LIMIT]) if found is None else found


def _commitment(text: str) -> float | None:
    if normalise(text) in _CHINESE:
        return float(_CHINESE[normalise(text)])
    text = digits(text)
    alone = re.fullmatch(r"\W*[0-9]+[.)]\W*", text)  # "2." alone is no list mark
    kept = text if alone else _YEAR.sub(" ", _LABEL.sub(" ", text))
    kept = _ENUMERATION.sub(_not_in_sequence, kept)
    without = _RANGE.sub(" ", kept)
    found = []
    for match in _NUMBER.finditer(without):
        after, before = without[match.end() :][:60], without[: match.start()][-60:]
        total = bool(_TOTAL_AFTER.match(after) or _TOTAL_BEFORE.search(before))
        number = value(match[1])
        if math.isfinite(number):  # not of runaway digits, "1e999", "1/0"
            found.append((total, bool(match["percent"]), number))
    if found:
        totals = [n for total, _, n in found if total]
        counted = [n for _, percent, n in found if not percent]
        return totals[-1] if totals else (counted or [n for _, _, n in found])[0]
    return 0.0 if without == kept and _NOTHING.search(kept) else None


def _not_in_sequence(match: re.Match[str]) -> str:
    """Counting aloud is removed; other lists of numbers stay."""
    numbers = [int(n) for n in re.findall(r"[0-9]+", match[0])]
    return " " if numbers == list(range(1, len(numbers) + 1)) else match[0]


def value(text: str) -> float:
    """A number as matched: "1,024", "1 1/2", "3/4", "1e3", "2 x 10^3"."""
    text = re.sub(r"\s?[x×*]\s?10\^?\{?([+-]?[0-9]+)\}?", r"e\1", text.replace(",", ""))
    sign = -1.0 if text.startswith("-") else 1.0
    whole, _, fraction = text.lstrip("+-").strip().rpartition(" ")
    if "/" not in fraction:
        return sign * float(whole + fraction)
    above, below = fraction.split("/")
    part = float(above) / float(below) if float(below) else float("inf")
    return sign * (float(whole or 0) + part)


def digits(text: str) -> str:
    """Number words, dozens and written fractions as digits; without Markdown's emphasis.

    "one" as a pronoun ("the one on the left", "one of") stays.
    """
    text = re.sub(r"[*`]+|(?<!\w)_+|_+(?!\w)", "", text)
    text = _CHINESE_COUNT.sub(lambda m: str(_CHINESE[m[1]]), text)
    text = _BESIDE_CHINESE.sub(" ", text)
    for sign, fraction in _FRACTIONS.items():
        text = re.sub(rf"(?<=[0-9])\s?{sign}", f" {fraction}", text).replace(sign, fraction)
    text = _ONE_OF.sub("some of", text)
    text = _AND_A_HALF.sub(lambda m: f"{_number(m[1]) + 0.5:g}", text)
    text = _PHRASE.sub(lambda m: list(_PHRASES.values())[int(str(m.lastgroup)[1:])], text)
    text = _NAMED.sub(lambda m: _spelled(m, text), text)
    return _DOZEN.sub(lambda m: str(12 * int(m[1])), text)


def _number(word: str) -> float:
    return float(_SMALL[word.lower()]) if word.isalpha() else float(word)


def _spelled(match: re.Match[str], text: str) -> str:
    """As in "two hundred and five" -> "205"; words that are no one number stay apart."""
    words = re.split(r"\s+and\s+|[- ]", match[0].lower())
    before = text[max(0, match.start() - 20) : match.start()]
    if words == ["one"] and _PRONOUN.search(before):
        return match[0]
    if words[0] in _POWERS and not re.search(r"(?:\ba|[0-9])\s+\Z", before):
        return match[0]
    parts: list[int] = [0]  # finished numbers and the one being read
    last = 1000
    total = 0
    for word in words:
        if word in _POWERS:
            parts[-1] = max(parts[-1], 1) * _POWERS[word]
            if _POWERS[word] > 100:
                total, parts[-1] = total + parts[-1], 0
            last = _POWERS[word]
            continue
        n = _SMALL[word]
        fits = last >= 100 or (last >= 20 and 0 < n < 10 and last % 10 == 0)
        if not fits:
            parts[-1] += total
            total = 0
            parts.append(0)
        parts[-1] += n
        last = n
    parts[-1] += total
    return " ".join(map(str, parts))


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
    rf"(?:between\s+(?P<low0>{_VALUE})(?:{_GAP}(?P<unit0>{_UNIT}){_NO_UNIT})?\s*and"
    rf"|(?P<low1>{_VALUE})(?:{_GAP}(?P<unit1>{_UNIT}){_NO_UNIT})?\s*(?:-|–|~|\bto\b))"
    rf"\s*(?P<high>{_VALUE}){_GAP}(?P<unit>{_UNIT}){_NO_UNIT}"
    rf"|(?P<one>{_VALUE}){_GAP}(?P<unit2>{_UNIT}){_NO_UNIT})",
    re.IGNORECASE,
)
_INCHES = re.compile(
    rf"\s*,?\s*(?:and\s+)?(?P<n>{_VALUE})\s?(?:\"|”|″|''|in\b|inch(?:es)?\b)", re.IGNORECASE
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
    for part in (stated(text), plain(text)[:_LIMIT]):
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
