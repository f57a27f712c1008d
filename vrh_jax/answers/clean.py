"""What counts as the final answer in a printed text: thoughts, echoed prompts and spans."""

# ruff: noqa: RUF001 - such characters are in the texts that are read

import re

_THINK = re.compile(r"(<think(?:ing)?>|</think(?:ing)?>|◁/?think▷)", re.IGNORECASE)
# Where the answer begins in a decoded conversation, one form per chat template.
_ROLE = re.compile(
    r"(?:^|\n)[ \t]*assistant[ \t]*:?[ \t]*\n"
    r"|<\|im_start\|>\s*+assistant(?:<\|im_sep\|>|\s)"
    r"|<\|start_header_id\|>\s*+assistant\s*+<\|end_header_id\|>"
    r"|<\|assistant\|>[ \t]*:*"
    r"|(?-i:\bASSISTANT:)",
    re.IGNORECASE,
)
_OPEN = re.compile(r"<answer>|<\|begin_of_box\|>", re.IGNORECASE)
_CLOSE = re.compile(r"</answer>|<\|end_of_box\|>", re.IGNORECASE)
_WIDE = str.maketrans(
    "，、（）［］【】〔〕〖〗｛｝＜＞：；＋－−＝．０１２３４５６７８９ＡＢＣＤＥＦＧＨ",
    ",,()[][][][]{}<>:;+--=.0123456789ABCDEFGH",
)


def strip_thoughts(text: str) -> str:
    """Drop thinking blocks; linear in the length of the text.

    A block that never closes holds no final answer: what follows its tag is dropped. A closing
    tag alone (the chat template opened the block in the prompt) drops what precedes it.
    """
    kept: list[str] = []
    inside = False
    for i, piece in enumerate(_THINK.split(text)):
        if i % 2 == 0:
            if not inside:
                kept.append(piece)
        elif "/" in piece:
            if not inside:
                kept.clear()
            inside = False
        else:
            inside = True
    return "".join(kept)


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
