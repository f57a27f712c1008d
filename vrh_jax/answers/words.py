"""What a printed text states in words: the stated answer, plain words, yes or no."""

# ruff: noqa: RUF001 - such characters are in the texts that are read

import re
import string

from vrh_jax.answers.clean import final_answer

SPECIAL = re.compile(
    r"```(?:\w+(?=\n))?|<[|｜][^<>|｜]{0,80}[|｜]>|</?s>|<eos>|<end_of_turn>|<pad>"
)
BOXED = re.compile(r"\\boxed\s*+\{((?:[^{}]|\{[^{}]{0,500}\}){0,2000}+)\}?")
KEY = re.compile(
    r"[\"'](?:final_)?answer[\"']\s*+:\s*+(?:\[\s*+(?=[\"']))?[\"']?([^\"'}\n]+)", re.IGNORECASE
)
_LATEX = re.compile(r"\\(?:text|math)(?:bf|rm|it|sf)?\s?\{([^{}]*)\}|\\[,;!]|\\(?=[()\[\]$%#&])|\$")
_CUE = re.compile(
    r"(?:\b(?:final|correct|right|best)\s)?\banswer\b\**(?:\sis\b)?[ \t]*+[:=]?[\s*]*+",
    re.IGNORECASE,
)


def plain(text: object) -> str:
    """The final answer without special tokens, code fences and LaTeX's marks of text."""
    return _LATEX.sub(r"\1", SPECIAL.sub(" ", final_answer(text)))


def stated(text: object) -> str:
    r"""What a text declares to be its answer; "" without a declaration.

    In this order of preference: the value of an ``"Answer"`` key, the last ``\boxed{..}``, the
    rest of the line after the last "answer is" or "answer:".
    """
    answer = plain(text)
    for found in (KEY.findall(answer), BOXED.findall(answer)):
        if found:
            return found[-1].strip()
    # A text that is cut after "Answer:" is read by the declaration before.
    for end in reversed([cue.end() for cue in _CUE.finditer(answer)]):
        if line := _first_line(answer[end:]):
            return line
    return ""


def declared(text: object) -> str:
    """The stated answer (see ``stated``), else the first line with text."""
    return stated(text) or _first_line(plain(text))


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def normalise(text: str) -> str:
    """Lower case, without articles, markup and outer punctuation, single spaces."""
    text = re.sub(r"[*_`#]+", " ", text.lower())
    words = (w.strip(string.punctuation.replace("%", "") + "。、") for w in text.split())
    return " ".join(w for w in words if w and w not in ("a", "an", "the"))


_YES = ("yes", "yeah", "yep", "yup", "true")
_YES_NO = re.compile(rf"\b({'|'.join(_YES)}|no|nope|nah|false)\b", re.IGNORECASE)
# In these, "no" or "yes" answers nothing.
_IDLE = re.compile(
    r"\byes\s*+(?:or|and|/)\s*+no\b|\bno[- ](?:doubt|one|body|idea|matter|way to)\b", re.IGNORECASE
)
_NEGATED = re.compile(r"\b(?:not\s+|un)(true|false)\b", re.IGNORECASE)
_CHINESE = re.compile(r"\s*(?:(不是|没有|否)|(是的|是|有|对))的?(?=[\s,，。.!！]|\Z)")
_ALONE = {"y": True, "是": True, "是的": True, "对": True, "有": True} | {
    "n": False, "否": False, "不是": False, "不": False, "没有": False
}  # fmt: skip


def read_yes_no(text: object) -> bool | None:
    """True for yes or true, False for no or false, None if the answer does not commit.

    The first word decides ("Yes, it is a death notice"); otherwise the words must agree.
    """
    answer = _IDLE.sub(" ", declared(text))
    answer = _NEGATED.sub(lambda m: "false" if m[1].lower() == "true" else "true", answer)
    words = normalise(answer)
    if words in _ALONE:
        return _ALONE[words]
    if chinese := _CHINESE.match(answer):
        return chinese[2] is not None
    found = [m[1].lower() in _YES for m in _YES_NO.finditer(answer)]
    if found and (_YES_NO.match(words) or len(set(found)) == 1):
        return found[0]
    return None
