"""Numbers in printed answers: counts, decimals, fractions and number words."""

# ruff: noqa: RUF001 - such characters are in the texts that are read

import math
import re

from vrh_jax.answers.words import normalise, plain, stated

# Long texts are read up to here; a statement is read wherever it stands.
LIMIT = 20_000
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
VALUE = (
    rf"(?:[0-9]{{1,9}}\s+[0-9]{{1,9}}/[0-9]{{1,9}}|[0-9]{{1,9}}/[0-9]{{1,9}}"
    rf"|(?:{_DIGITS}(?:\.[0-9]++)?|\.[0-9]++)"
    rf"(?:[eE][+-]?[0-9]{{1,3}}|\s?[x×*]\s?10\^?\{{?[+-]?[0-9]{{1,3}}\}}?)?+)"
)
_NUMBER = re.compile(rf"(?<![\w.,/^])([+-]?{VALUE})(?P<percent>\s?%)?(?!\w|[.,][0-9]|/[0-9]|\^)")
_RANGE = re.compile(
    rf"(?<![\w.,])(?:\bbetween\s+{VALUE}\s+and\s+{VALUE}"
    rf"|{VALUE}\s*(?:-|–|~|\bto\b|\bor\b)\s*{VALUE})(?![\w.]?[0-9])",
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
    return _commitment(plain(text)[:LIMIT]) if found is None else found


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
