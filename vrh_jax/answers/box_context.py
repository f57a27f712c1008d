"""What stands around four numbers: whether it names them a box, or something that is none.

Every reading is of a bounded window, so it takes constant time.
"""

# ruff: noqa: RUF001 - such characters are in the texts that are read

import re

# A list under such a key or tag, or in such a call, is something else than a box.
_OTHER = re.compile(
    r"point|poly|quad|segm|mask|contour|colou?r|rgb|stroke|vert(?:ex|ices)|cent(?:er|re)|traject",
    re.IGNORECASE,
)
_OTHER_KEY = re.compile(
    r"(?:\A|[\"'`{(,*\n])\s*+(?:axis|confidences?|counts?|dates?|ids?|lines?|logits?|prob(?:abilitie)?s?|"
    r"probability|(?:image_?)?(?:size|shape)|scores?|years?)[\"'`* ]{0,4}[:=]\s*+\Z",
    re.IGNORECASE,
)
# Boxes before the first that is named by a key or tag belong to another key or to prose.
_NAMED_BOX = re.compile(
    r"(?:[\"'](?:b(?:ounding[_ ]?)?box(?:es)?(?:_?2d)?|box(?:es)?_?2d)[\"']\s*+[:=]"
    r"|<\|?(?:box|bbox|det)(?:_start)?\|?>)[\s\"'\[(]*+\Z",
    re.IGNORECASE,
)
_BOX_KEY = re.compile(r"box|rect|det\Z", re.IGNORECASE)
_NAME = re.compile(r"([\w-]{1,60})[\"'`* ]{0,4}\Z")
_TAG = re.compile(r"<\|?([\w-]{1,40})\|?>\Z")
_OPEN_TAG = re.compile(r"<\|?\w{0,20}(?:point|line|poly)\w{0,20}\s[^<>]{0,200}\Z", re.IGNORECASE)
_CALL = re.compile(
    r"\b(?:click|tap|drag|swipe|scroll|(?:key)?points?|move\w{0,9}|pixels?|cent(?:er|re)s?|vertices|"
    r"lines?|segments?|traject\w{0,9})"
    r"(?:\s+(?:at|are|is))?[\s(:]*\Z",
    re.IGNORECASE,
)
_WORD_BEFORE = re.compile(r"(?!(?<=box)|(?<=rect)|(?<=bbox_2d))(?<=\w)\Z", re.IGNORECASE)
_SUM_BEFORE = re.compile(r"(?:[0-9)\]][ \t]*[+*/×÷]|[)\]][ \t]*-)[ \t]*\Z")
_SUM_AFTER = re.compile(
    r"[ \t]*(?:[+/=×÷]|\*(?!\*))[ \t]*[0-9(\[]|[ \t]*-[ \t]*[(\[][ \t]*[+-]?[0-9]|[ \t]*[-+*/][0-9]"
)


def under_other(head: str) -> bool:
    """Whether what encloses or precedes the numbers names something else than a box."""
    name = _name(head)
    if names_other(name):
        return not _BOX_KEY.search(name)
    return bool(_OTHER_KEY.search(head[-70:]) or _OPEN_TAG.search(head[-230:] + " "))


def under_box(before: str) -> bool:
    """Whether a key or tag right before says that what follows is a box."""
    return bool(_BOX_KEY.search(_name(before.rstrip(" \t\r\n[("))))


def _name(head: str) -> str:
    """The tag or key at the end of a text, or ""."""
    name = _TAG.search(head[-50:])
    if not name and head[-1:] in (":", "="):
        name = _NAME.search(head[:-1].rstrip()[-70:])
    return name[1] if name else ""


def names_other(words: str) -> bool:
    """Whether a word names something else than a box, as in "polygon coordinates"."""
    return bool(_OTHER.search(words))


def named_box(before: str) -> bool:
    """Whether the text before is a key or tag of boxes, with nothing between."""
    return bool(_NAMED_BOX.search(before[-60:]))


def in_call(before: str) -> bool:
    """Whether the numbers are arguments of an action or of a word for points, "click(...)"."""
    return bool(_CALL.search(before[-40:]))


def after_word(before: str) -> bool:
    """Whether a word is joined to the numbers, "max(1, 2, 3, 4)", other than one for a box."""
    return bool(_WORD_BEFORE.search(before))


def arithmetic(before: str, after: str) -> bool:
    """Whether the numbers are part of a calculation."""
    return bool(_SUM_BEFORE.search(before[-20:]) or _SUM_AFTER.match(after))


def beside_number(before: str) -> bool:
    """In a list after a bare number, "[245,[234,543,542,244]]": broken, which is not repaired.

    A box begun anew with its double bracket, "[[220, [[220, 416, 417, 720]]", is whole.
    """
    head = before.rstrip()
    if not head.endswith(","):
        return False
    outer = head.rstrip(" \t\r\n0123456789.,+-")
    return outer.endswith("[") and len(outer) < len(head) - 1
