"""Reader of multiple-choice answers.

Handles what breaks the readers of public evaluators: explanations after the letter, a rejected
option named first, articles and pronouns ("A", "I") taken for options, letters in formulas.
"""

# ruff: noqa: RUF001 - such characters are in the texts that are read

import re
from collections.abc import Sequence

from vrh_jax.answers.words import BOXED, KEY, normalise, plain

_MARKUP = r"[\s*_`\"'(\[{$]*"
_CUE = re.compile(
    rf"(?:\b(?:answer|option|choice)\b(?:\s+(?:is|was|would be|should be|must be))?"
    rf"|(?P<pick>\b(?:choose|pick|select|go(?:ing)? with)\b(?:\s+(?:option|choice)\b)?)"
    rf"|答案(?:是|为)?|(?P<xuan>选择?))"
    rf"(?P<end>{_MARKUP}[:=]?{_MARKUP})",
    re.IGNORECASE,
)
_WRONG = r"(?:not\b|n['’]t\b|incorrect|wrong|false|ruled out|excluded|impossible|out\b)"
# What may follow a small letter that is an option; "a" and "i" are words more often.
_SMALL_END = (r"[*_]*(?:[).:,;!]|\s*\Z|\s+(?:because|since|as|and|but)\b)", r"[*_]*(?:[).:]|\s*\Z)")
_AS_WORD = re.compile(r"\s+(?!(?:or|and|is|was|because|since|as|would|seems)\b)[a-z]")


def read_choice(text: object, choices: Sequence[str] = ()) -> int | None:
    r"""Index of the option that an answer commits to, or None.

    In this order: the value of an ``"Answer"`` key; the last declaration ("the answer is",
    ``\boxed{..}``); a letter that stands alone or opens the answer; the only option letter
    named and not rejected; the only option whose text is named. An option's text that opens the
    answer before a comma or full stop counts like a letter there.

    Args:
        text: what the model printed.
        choices: the options' texts, lettered from A; without them A to H are letters.
    """
    answer = plain(text).strip()
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: len(choices) or 8]
    keyed = KEY.findall(answer)
    # The value of a key is read like a short answer of its own.
    parts = [*keyed[-1:], answer]
    return next(
        (i for i in (_read(part, letters, choices) for part in parts) if i is not None), None
    )


def _read(answer: str, letters: str, choices: Sequence[str]) -> int | None:
    whole = _whole(answer, letters, choices)
    if whole is not None:
        return whole
    answer = _without_rejected(answer, letters)
    for read in (_declared, _whole, _opening, _opening_text, _confirmed, _only_letter):
        index = read(answer, letters, choices)
        if index is not None:
            return index
    return _only_text(answer, choices)


def _without_rejected(answer: str, letters: str) -> str:
    """Remove letters that are named to be ruled out: "(A) is incorrect", "not A"."""
    letter = rf"\(?(?<![A-Za-z])[{letters}](?![A-Za-z])\)?"
    named = rf"(?:\b(?:option|choice|answer)\s+)?(?<![*_])[*_]*+{letter}[*_]*"
    several = rf"{letter}(?:(?:\s*,\s*|\s+(?:and|or)\s+|\s*,\s+(?:and|or)\s+){letter}){{1,8}}"
    # The option's text may stand between: "A. red is wrong".
    said = rf"(?:[.):][*_]*\s(?:(?!\b[{letters}]\b)[^.,;\n]){{1,40}}?)?"
    verb = r"(?:is|was|can|could|does|would be|seems|cannot be|isn|wasn|doesn)"
    for pattern in (
        rf"{several}\s+(?:are|were)\s*{_WRONG}",
        rf"{named}{said}\s+{verb}\s*{_WRONG}",
        rf"\b(?i:neither)[*_\s]+{letter}\s+nor\s+{letter}",
        rf"\b(?i:not|neither|nor|rather than|instead of)[*_\s]+{letter}",
    ):
        answer = re.sub(pattern, " ", answer)
    return answer


def _letter_at(answer: str, start: int, letters: str, *, small: bool = False) -> int | None:
    """Index of an option letter that stands by itself at ``start``.

    Small letters count where asked for; "a" and "i" only where they cannot be words.
    """
    letter = answer[start : start + 1]
    after = answer[start + 1 :][:40]
    if not letter or letter.upper() not in letters or after[:1].isalpha():
        return None
    if letter.islower() and not (small and re.match(_SMALL_END[letter in "ai"], after)):
        return None
    if after.startswith(("'", "’")) and after[1:2].isalpha():
        return None
    if letter in "AI" and _AS_WORD.match(after):  # "A dog", "I computed"
        return None
    return letters.index(letter.upper())


def _with_another(answer: str, start: int, letters: str) -> bool:
    """Whether a second letter follows: "A or B" declares nothing."""
    after = answer[start + 1 :][:40]
    return bool(re.match(rf"\W?\s*(?:or|and|/|,|&)\s*(?:or\s)?\W?[{letters}](?![A-Za-z'’])", after))


def _declared(answer: str, letters: str, choices: Sequence[str]) -> int | None:
    found: list[tuple[int, int]] = []
    for boxed in BOXED.finditer(answer):
        index = _whole(boxed[1], letters, choices)
        if index is not None:
            found.append((boxed.start(), index))
    longest = 2 * max((len(choice) for choice in choices), default=0) + 20
    for cue in _CUE.finditer(answer):
        said = answer[cue.start() : cue.end()]
        strong = cue["pick"] or cue["xuan"] or re.search(r"is|be|was|[:=]|是|为", said[2:])
        if not strong:
            continue
        line = answer[cue.end() : cue.end() + 300].split("\n", 1)[0].split(". ", 1)[0]
        index = _whole(line, letters, choices) if 1 < len(line.strip()) <= longest else None
        if index is None and not _with_another(answer, cue.end(), letters):
            index = _letter_at(answer, cue.end(), letters, small=True)
        if index is not None:
            found.append((cue.start(), index))
    return max(found)[1] if found else None


def _whole(answer: str, letters: str, choices: Sequence[str]) -> int | None:
    """The answer is nothing but a letter or nothing but an option's text."""
    text = normalise(answer)
    same = [i for i, choice in enumerate(choices) if text and normalise(choice) == text]
    if len(same) == 1 and len(text) > 1:
        return same[0]
    alone = re.fullmatch(r"\W*([A-Za-z])\W*", answer.replace("_", " "))
    if alone and alone[1].upper() in letters:
        return letters.index(alone[1].upper())
    return same[0] if len(same) == 1 else None


def _opening(answer: str, letters: str, choices: Sequence[str]) -> int | None:
    """The answer opens with a marked letter: "C. A girl", "(B) blue", "B blue"."""
    opening = re.match(rf"[\s*_(\[\"']*([{letters}])(?![A-Za-z])", answer)
    if not opening:
        return None
    index = letters.index(opening[1])
    rest = answer[opening.end() :]
    listed = set(re.findall(rf"(?:^|\s)[*_(]*([{letters}])[).:][*_]*(?=\s|$)", answer))
    if len(listed) > 1:  # the options read out, no choice
        return None
    if re.match(r"[*_]*[.):\]\n]|\*\*", rest):
        return index
    if re.match(rf",(?!\s*[{letters}](?![A-Za-z]))", rest):
        return index
    text = normalise(choices[index]) if choices else ""
    return index if text and normalise(rest).startswith(text) else None


def _opening_text(answer: str, letters: str, choices: Sequence[str]) -> int | None:
    """The answer opens with an option's text and a stop: "Yes, because no cat is there"."""
    del letters
    opening = re.match(r"[\s*_\"'(]*+([^,.;:!\n]{1,200}+)(?:[,;:!\n]|\.(?=\s|\Z))", answer)
    if not opening:
        return None
    texts = [_plain_words(choice) for choice in choices]
    said, rest = _plain_words(opening[1]), f"{_plain_words(answer[opening.end() :][:300])} "
    rest = re.sub(r"^(?:and|or) ", "", rest)
    if texts.count(said) != 1 or not said:
        return None
    # "Red, blue and green" lists options.
    listed = opening[0].endswith((",", ";")) and any(rest.startswith(f"{t} ") for t in texts if t)
    return None if listed else texts.index(said)


def _confirmed(answer: str, letters: str, choices: Sequence[str]) -> int | None:
    """The last letter said to be right: "Option C is the correct one"."""
    del choices
    found = None
    for match in re.finditer(
        rf"(?<![A-Za-z])([{letters}])[)*_]{{0,3}} (?:is|must be|would be|seems) (?:the )?(?:most )?"
        r"(?:correct|right|best|answer)\b",
        answer,
    ):
        found = letters.index(match[1])
    return found


def _only_letter(answer: str, letters: str, choices: Sequence[str]) -> int | None:
    del choices
    named = {
        _letter_at(answer, m.start(), letters)
        for m in re.finditer(rf"(?<![A-Za-z\\])[{letters}](?![A-Za-z])", answer)
    } - {None}
    return named.pop() if len(named) == 1 else None


def _only_text(answer: str, choices: Sequence[str]) -> int | None:
    """The only option named, not counting options inside a longer named option."""
    said = f" {_plain_words(answer)} "
    texts = [_plain_words(choice) for choice in choices]
    named = [i for i, text in enumerate(texts) if text and f" {text} " in said]
    inside = {i for i in named for j in named if i != j and f" {texts[i]} " in f" {texts[j]} "}
    rest = [i for i in named if i not in inside]
    return rest[0] if len(rest) == 1 else None


def _plain_words(text: str) -> str:
    return re.sub(r"[^\w%.]+", " ", normalise(text)).strip()
