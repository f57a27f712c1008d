"""What counts as the final answer in a printed text: thoughts, echoed prompts and spans."""

# ruff: noqa: RUF001 - such characters are in the texts that are read

import re

# Phi-4-Reasoning-Vision writes <|dummy_84|> before an answer without thoughts.
_THINK = re.compile(r"(<think(?:ing)?>|</think(?:ing)?>|◁/?think▷|<\|dummy_84\|>)", re.IGNORECASE)
# Where the answer begins in a decoded conversation, one form per chat template.
_ROLE = re.compile(
    r"(?:^|\n)[ \t]*assistant[ \t]*(?::|\n)"
    r"|<\|im_start\|>\s*+assistant(?:<\|im_sep\|>|\s)"
    r"|<\|start_header_id\|>\s*+assistant\s*+<\|end_header_id\|>"
    r"|<\|assistant\|>[ \t]*:*"
    r"|<start_of_turn>\s*+model\b|\[/INST\]|(?:^|\n)#{2,3} (?:assistant|response):"
    r"|(?-i:\bASSISTANT:)",
    re.IGNORECASE,
)
_OPEN = re.compile(r"<answer>|<\|begin_of_box\|>", re.IGNORECASE)
_CLOSE = re.compile(r"</answer>|<\|end_of_box\|>", re.IGNORECASE)
_WIDE = str.maketrans(
    "，、（）［］【】〔〕〖〗｛｝＜＞：；＋－−＝．０１２３４５６７８９ＡＢＣＤＥＦＧＨ",
    ",,()[][][][]{}<>:;+--=.0123456789ABCDEFGH",
)


def answer_spans(text: str) -> list[tuple[int, int]]:
    """Where a text is not thought, as (start, end) offsets; linear in its length.

    A block that never closes holds no final answer: what follows its tag is dropped. A closing
    tag alone (the chat template opened the block in the prompt) drops what precedes it.
    """
    kept: list[tuple[int, int]] = []
    inside, start = False, 0
    for tag in _THINK.finditer(text):
        closing = "/" in tag[0] or "dummy" in tag[0]
        if not inside:
            kept.append((start, tag.start()))
        if closing and not inside:
            kept.clear()
        inside, start = not closing, tag.end()
    if not inside:
        kept.append((start, len(text)))
    return kept


def strip_thoughts(text: str) -> str:
    """The text without its thinking blocks; see ``answer_spans``."""
    return "".join(text[start:end] for start, end in answer_spans(text))


def final_answer(text: object) -> str:
    """The part of a printed text that states the answer.

    An echoed prompt (up to the last line or tag of the assistant's turn) and thoughts are
    dropped; of the spans ``<answer>..</answer>`` and ``<|begin_of_box|>..<|end_of_box|>`` the
    last one decides, closed or cut short. Full-width punctuation and digits become ASCII.
    Anything but a string reads as "".
    """
    if not isinstance(text, str):
        return ""
    text = strip_thoughts(_ROLE.split(text.translate(_WIDE))[-1])
    start = None
    for opening in _OPEN.finditer(text):
        start = opening.end()
    if start is None:
        return text
    closing = _CLOSE.search(text, start)
    return text[start : closing.start() if closing else len(text)]
