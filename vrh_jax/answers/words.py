"""Readers of short answers: text, counts, yes or no, lengths."""

# ruff: noqa: RUF001 - such characters are in the texts that are read

import re
import string

from vrh_jax.answers.clean import final_answer

_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_WORDS = {word: n for n, word in enumerate(_UNITS)} | {
    word: 10 * n for n, word in enumerate(_TENS, start=2)
}
SPECIAL = re.compile(r"```(?:\w+(?=\n))?|<[|｜][^<>|｜]*[|｜]>|</?s>|<eos>|<end_of_turn>|<pad>")
BOXED = re.compile(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}?")
KEY = re.compile(r"[\"']answer[\"']\s*:\s*[\"']?([^\"'}\n]+)", re.IGNORECASE)
_CUE = re.compile(
    r"(?:\b(?:final|correct|right|best)\s+)?\banswer\b\s*(?:is\b\s*)?[:=]?\s*", re.IGNORECASE
)


def declared(text: object) -> str:
    r"""The stated answer without its wrapping, of a short free-form answer.

    In this order of preference: the value of an ``"Answer"`` key, the last ``\boxed{..}``, the
    rest of the line after the last "answer is" or "answer:", else the first line with text.
    """
    answer = SPECIAL.sub(" ", final_answer(text))
    for found in (KEY.findall(answer), BOXED.findall(answer)):
        if found:
            return found[-1].strip()
    *_, last = (0, *(cue.end() for cue in _CUE.finditer(answer)))
    if answer[last:].strip():
        answer = answer[last:]
    return next((line.strip() for line in answer.splitlines() if line.strip()), "")


def normalise(text: str) -> str:
    """Lower case, without articles, markup and outer punctuation, single spaces."""
    text = re.sub(r"[*_`#]+", " ", text.lower())
    words = (w.strip(string.punctuation.replace("%", "") + "。、") for w in text.split())
    return " ".join(w for w in words if w and w not in ("a", "an", "the"))


_NAMED = re.compile(
    rf"\b(?:(?P<tens>{'|'.join(_TENS)})[- ](?P<unit>{'|'.join(_UNITS[1:10])})"
    rf"|(?P<word>{'|'.join(_WORDS)}))\b",
    re.IGNORECASE,
)
_PRONOUN = re.compile(r"\b(?:the|this|that|each|every|any|no|which|left|right)\s+\Z", re.IGNORECASE)
_DIGITS = r"[+-]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]++)(?:\.[0-9]++)?"
_NUMBER = re.compile(rf"(?<![\w.,])({_DIGITS})(?![\w%]|\.[0-9])")
_RANGE = re.compile(r"(?<![\w.])[0-9]++\s*(?:-|–|to|or)\s*[0-9]++(?!\w)", re.IGNORECASE)
_TOTAL_AFTER = re.compile(r"\s*(?:\w+\s+){0,3}?(?:in total|altogether|overall)", re.IGNORECASE)
_TOTAL_BEFORE = re.compile(
    r"(?:=|\b(?:total(?:\s+(?:of|is|number))?|so|therefore|thus|altogether))\W+(?:\w+\s+){0,3}?\Z",
    re.IGNORECASE,
)


def read_count(text: object) -> float | None:
    """The number that an answer commits to, in digits or words; None without one.

    Several numbers: the one called a total ("= 5", "so 5", "5 in total"), else the first. A
    range ("2-3", "two or three") is no commitment. "none" and "no ..." alone are 0.
    """
    line = _digits(re.sub(r"[*_`]+|(?i:\bregion\s*\[\d*\])", "", declared(text)[:2000]))
    without = _RANGE.sub(" ", line)
    found = []
    for match in _NUMBER.finditer(without):
        after, before = without[match.end() :][:60], without[: match.start()][-60:]
        total = bool(_TOTAL_AFTER.match(after) or _TOTAL_BEFORE.search(before))
        found.append((total, float(match[1].replace(",", ""))))
    if found:
        return next((n for total, n in reversed(found) if total), found[0][1])
    nothing = re.search(r"\b(?:none|no|nothing)\b", line, re.IGNORECASE)
    return 0.0 if nothing and without == line else None


def _digits(line: str) -> str:
    """Number words to digits; "one" as a pronoun stays."""

    def digits(match: re.Match[str]) -> str:
        if match["tens"]:
            return str(_WORDS[match["tens"].lower()] + _WORDS[match["unit"].lower()])
        word = match["word"].lower()
        pronoun = word == "one" and _PRONOUN.search(line[: match.start()][-20:])
        return match[0] if pronoun else str(_WORDS[word])

    return _NAMED.sub(digits, line)


_YES_NO = re.compile(r"\b(yes|no|true|false)\b", re.IGNORECASE)


def read_yes_no(text: object) -> bool | None:
    """True for yes or true, False for no or false, None if the answer does not commit.

    The first word decides ("Yes, it is a death notice"); otherwise the words must agree.
    """
    answer = re.sub(r"\byes\s*(?:or|/)\s*no\b", " ", declared(text), flags=re.IGNORECASE)
    found = [m[1].lower() in ("yes", "true") for m in _YES_NO.finditer(answer)]
    if not found:
        return None
    if _YES_NO.match(normalise(answer)) or len(set(found)) == 1:
        return found[0]
    return None


_METRES = {
    r"mm|millimet(?:er|re)s?": 0.001,
    r"cm|centimet(?:er|re)s?": 0.01,
    r"km|kilomet(?:er|re)s?": 1000.0,
    r"m|met(?:er|re)s?": 1.0,
    r"in|inch(?:es)?|\"|”|″": 0.0254,
    r"ft|foot|feet|'|’|′": 0.3048,
    r"yd|yards?": 0.9144,
}
_LENGTH = re.compile(
    rf"(?<![\w.])(?P<low>\d+(?:\.\d+)?)(?:\s*(?:-|–|to)\s*(?P<high>\d+(?:\.\d+)?))?\s*"
    rf"(?P<unit>{'|'.join(_METRES)})(?![A-Za-z])"
    rf"(?:\s*(?P<inches>\d+(?:\.\d+)?)\s*(?:\"|”|″|in\b|inch(?:es)?))?",
    re.IGNORECASE,
)
_WIDTH = re.compile(r"\b(?:wide|width|across|horizontal\w*)\b", re.IGNORECASE)
_HEIGHT = re.compile(r"\b(?:tall|high|height|vertical\w*)\b", re.IGNORECASE)


def read_length(text: object, dimension: str = "") -> float | None:
    """A length in metres: metric, imperial, feet and inches; a range counts as its middle.

    Args:
        text: the answer; "Region [0]" and other numbers without a unit are skipped.
        dimension: "width" or "height" picks among several lengths by the nearest word ("1.5 m
            wide and 2 m tall"); without a word the first length counts.
    """
    answer = final_answer(text)
    lengths = [(m, _metres(m)) for m in _LENGTH.finditer(answer)]
    wanted = {"width": _WIDTH, "height": _HEIGHT}.get(dimension)
    if wanted is None or len(lengths) < 2:
        return lengths[0][1] if lengths else None
    named = [(w.start() + w.end()) / 2 for w in wanted.finditer(answer)]
    if not named:
        return lengths[0][1]
    return min(
        lengths, key=lambda one: min(abs(n - (one[0].start() + one[0].end()) / 2) for n in named)
    )[1]


def _metres(match: re.Match[str]) -> float:
    low = float(match["low"])
    number = (low + float(match["high"])) / 2 if match["high"] else low
    unit = next(s for p, s in _METRES.items() if re.fullmatch(p, match["unit"], re.IGNORECASE))
    inches = float(match["inches"]) if match["inches"] and unit == 0.3048 else 0.0
    return number * unit + inches * 0.0254
