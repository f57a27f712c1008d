"""The forms in which models print four numbers that are a box.

Everything here takes time linear in the length of the text: quantifiers are possessive or bounded,
and the surroundings of a match are read in windows.
"""

# ruff: noqa: RUF001 - such characters are in the texts that are read

import math
import re
from collections.abc import Callable, Iterator

from vrh_jax.answers.box_context import (
    after_word,
    arithmetic,
    beside_number,
    in_call,
    named_box,
    names_other,
    under_box,
    under_other,
)

Box = tuple[float, float, float, float]

_N = r"[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?"
# JSON now and then holds the numbers as strings, Markdown in bold.
_Q = rf"[\"'*`]{{0,3}}{_N}[\"'*`]{{0,3}}"
_COMMA = r"\s*+,\s*+"
_FOUR = rf"{_Q}(?:{_COMMA}{_Q}){{3}}"
_ANY_FOUR = rf"(?:{_FOUR}|{_N}(?:\s++{_N}){{3}})"
_PAIR = rf"\(\s*+{_Q}{_COMMA}{_Q}\s*+\)"
_LIST_PAIR = rf"(?:{_PAIR}|\[\s*+{_Q}{_COMMA}{_Q}\s*+\])"
_XY = rf"\{{\s*+[\"']?x[\"']?\s*+:\s*+{_Q}{_COMMA}[\"']?y[\"']?\s*+:\s*+{_Q}\s*+\}}"
_XY_BARE = rf"x\s*+[:=]\s*+{_Q}[\s,;]{{0,4}}(?:and\s++)?y\s*+[:=]\s*+{_Q}"
_CORNER = rf"(?:{_LIST_PAIR}|{_XY}|{_XY_BARE}|{_Q}{_COMMA}{_Q})"
_FILL = (
    r"(?:[\s:=,.;*\"'`_|-]|\b(?:and|at|are|bounding|box|coord(?:inate)?s?|corner|from|is|its|"
    r"object|of|pixel|point|position|the|to|vertex|with)\b|坐标|为|是|在|角|和|点){0,24}+"
)
# Words between two corners whose names come behind them.
_NAMED_AS = (
    r"(?:[\s*,;:_-]|\b(?:and|are|as|at|corner|for|is|marks|of|the|to)\b|为|是|在|角|和){0,16}+"
)
_FIRST = (
    r"(?:(?:top|upper)[-_ ]?left|left[-_ ]?(?:top|upper)|左上|"
    r"\(\s*+x_?[01]\s*+,\s*+y_?[01]\s*+\))"
)
_SECOND = (
    r"(?:(?:bottom|lower)[-_ ]?right|right[-_ ]?(?:bottom|lower)|右下|"
    r"\(\s*+x_?[12]\s*+,\s*+y_?[12]\s*+\))"
)
_OTHER_CORNER = (
    r"(?:(?:(?:top|upper)[-_ ]?right|right[-_ ]?(?:top|upper)|右上)"
    r"|(?:(?:bottom|lower)[-_ ]?left|left[-_ ]?(?:bottom|lower)|左下))"
)
_SPAN = r"\s*+(?:to|and|through|until|-{1,2}>?|–|—|→|,)\s*+"
_SIDE = (
    r"[xy][-_ ]?(?:min|max|[0-9]|left|right|top|bottom)|(?:min|max)[-_ ]?[xy]"
    r"|(?:top|upper)[-_ ]?left[-_ ]?[xy]|(?:bottom|lower)[-_ ]?right[-_ ]?[xy]"
    r"|left|top|right|bottom|width|height|[xywh]"
)
_ITEM = rf"(?<![\w<])[\"'`*]{{0,3}}(?:{_SIDE})[\"'`*]{{0,3}}\s*+[:=]\s*+{_Q}(?![\w%])"
FORMS = re.compile(
    rf"(?P<list>\[\s*+{_ANY_FOUR}\s*+\])"
    rf"|(?P<nested>\[\s*+{_LIST_PAIR}{_COMMA}{_LIST_PAIR}\s*+\])"
    rf"|(?P<tuple>\(\s*+{_FOUR}\s*+\))"
    rf"|(?P<corners>{_FIRST}{_FILL}{_CORNER}(?:{_FILL}{_OTHER_CORNER}{_FILL}{_CORNER}){{0,2}}+"
    rf"{_FILL}{_SECOND}{_FILL}{_CORNER}(?:{_FILL}{_OTHER_CORNER}{_FILL}{_CORNER})?+)"
    rf"|(?P<behind>{_LIST_PAIR}{_NAMED_AS}{_FIRST}{_NAMED_AS}{_LIST_PAIR}{_NAMED_AS}{_SECOND}"
    rf"(?!{_FILL}{_CORNER}))"
    rf"|(?P<span>\b(?:b?box|rectangle)\b[^.!?\n0-9()\[\]{{}}<>]{{0,60}}+"
    rf"{_LIST_PAIR}{_SPAN}{_LIST_PAIR}(?!{_SPAN}{_LIST_PAIR}|\s*+[,;]?\s*+[\[(]))"
    rf"|(?P<pairs>{_PAIR}(?:[ \t]*+(?:,|;|and\b|to\b|->|→)?\s*+{_PAIR})*+)"
    r"|(?P<tokens>(?:<[0-9]++>\s*+)++)"
    rf"|(?P<quoted>(?<!view)box(?:es)?(?:_?2d)?[\"'`*]{{0,3}}\s*+[=:]\s*+[\"']\s*+{_ANY_FOUR}\s*+[\"'])"
    rf"|(?P<keyed>(?:\bb?box(?:es)?(?:_?2d)?[\"'`*]{{0,3}}\s*+[=:]"
    rf"|\bcoordinates?(?:\s+(?:is|are))?\s*+[=:]?)[\s*`]*+{_FOUR}(?![\w%(]|\s*+[,.]\s*+[0-9]))"
    rf"|(?P<tagged><\|?(?:box|bbox|det)(?:_start)?\|?>\s*+{_ANY_FOUR}(?=\s*+<))"
    rf"|(?P<named>{_ITEM}(?:[\s,;()]*+(?:and\b\s*+|[-*•]\s++)?{_ITEM})*+)",
    re.IGNORECASE,
)
# Without brackets, commas are separators only if all are alike ("1,024, 300" is two numbers).
_WHOLE = re.compile(
    rf"[\s\"'`*$({{]*+(?:{_Q}(?:,{_Q}){{3}}|{_Q}(?:,\s++{_Q}){{3}})[\s\"'`*$)}}.]*+"
)
_LOC = re.compile(r"(?:<loc[0-9]{4}>\s*+)++")
_NUMBER = re.compile(_N)
_PAIR_RE = re.compile(_PAIR)
_ITEM_RE = re.compile(rf"({_SIDE})[\"'`*]{{0,3}}\s*+[:=]\s*+[\"'`*]{{0,3}}({_N})", re.IGNORECASE)
_CORNER_RE = re.compile(
    rf"(?:{_FIRST}|{_SECOND}|(?P<named>{_OTHER_CORNER})){_FILL}(?P<corner>{_CORNER})", re.IGNORECASE
)

# Names of the four sides, in the order x0, y0, x1, y1, or x, y, width, height.
_SIDES = tuple(
    names.split()
    for names in (
        "x1 y1 x2 y2",
        "x0 y0 x1 y1",
        "xmin ymin xmax ymax",
        "minx miny maxx maxy",
        "left top right bottom",
        "xleft ytop xright ybottom",
        "topleftx toplefty bottomrightx bottomrighty",
        "upperleftx upperlefty lowerrightx lowerrighty",
    )
)
_SIZES = tuple(names.split() for names in ("x y w h", "x y width height", "left top width height"))

_MORE_PAIRS = re.compile(r"\s*[,;]?\s*\((?:\s*[+-]?[0-9.]|\s*\Z)|\s*,\s*\Z")
_INSIDE = " \t\r\n\f\v[](),.0123456789+-"
_WINDOW = 300


def loc_boxes(text: str) -> Iterator[Box]:
    """PaliGemma: exactly four location tokens in a row, y before x, each in 0..1023."""
    for match in _LOC.finditer(text):
        found = [float(n) for n in re.findall(r"[0-9]{4}", match[0])]
        cut = text.startswith("<loc", match.end())
        if len(found) == 4 and not cut and max(found) <= 1023:
            y0, x0, y1, x1 = found
            yield x0, y0, x1, y1


def number_boxes(text: str) -> Iterator[Box]:
    """All other families: four numbers, x first, in one of the forms."""
    if _WHOLE.fullmatch(text):
        yield from _finite(_numbers(text))
        return
    boxes = list(_stated(text))
    first = next((i for i, (named, _) in enumerate(boxes) if named), 0)
    yield from (box for _, box in boxes[first:])


def _stated(text: str) -> Iterator[tuple[bool, Box]]:
    """Boxes in order, and whether a key or tag names them as such."""
    other = False
    for match in FORMS.finditer(text):
        before = text[max(0, match.start() - _WINDOW) : match.start()]
        after = text[match.end() : match.end() + 40]
        inside = _INSIDE + ("{\"'" if match["named"] else "")
        opening = match.start() - len(before) + len(before.rstrip(inside))
        if len(before) < _WINDOW or opening > match.start() - _WINDOW:
            other = under_other(text[max(0, opening - _WINDOW) : opening])
        # else the window lies inside the same long list, and what holds for it still does
        form = match.lastgroup or ""
        if not (other or arithmetic(before, after) or beside_number(before)):
            named = named_box(before)
            for numbers in _READERS[form](match, before, after):
                yield from ((named, box) for box in _finite(numbers))


def _finite(numbers: list[float]) -> Iterator[Box]:
    if len(numbers) == 4 and all(map(math.isfinite, numbers)):
        x0, y0, x1, y1 = numbers
        yield x0, y0, x1, y1


def _numbers(text: str) -> list[float]:
    return [float(n) for n in _NUMBER.findall(text)]


def _tuple(match: re.Match[str], before: str, _after: str) -> Iterator[list[float]]:
    if not after_word(before):  # max(1, 2, 3, 4)
        yield _numbers(match[0])


def _last_four(match: re.Match[str], _before: str, _after: str) -> Iterator[list[float]]:
    yield _numbers(match[0])[-4:]  # a key such as "bbox_2d" has a digit


def _keyed(match: re.Match[str], before: str, _after: str) -> Iterator[list[float]]:
    word = before[-30:].rstrip().rpartition(" ")[2]  # "polygon coordinates: ..."
    if not names_other(word):
        yield _numbers(match[0])[-4:]


def _nested(match: re.Match[str], before: str, _after: str) -> Iterator[list[float]]:
    if under_box(before):  # else they are two points
        yield _numbers(match[0])


def _corners(match: re.Match[str], _before: str, _after: str) -> Iterator[list[float]]:
    """Two named corners, or all four if they are those of an upright box."""
    stated = [
        (bool(m["named"]), *_numbers(m["corner"])[-2:]) for m in _CORNER_RE.finditer(match[0])
    ]
    (x0, y0), (x1, y1) = [point[1:] for point in stated if not point[0]]
    if all(point[1:] in ((x1, y0), (x0, y1)) for point in stated if point[0]):
        yield [x0, y0, x1, y1]


def _span(match: re.Match[str], before: str, _after: str) -> Iterator[list[float]]:
    if not names_other(f"{before[-20:]}{match[0].partition('(')[0].partition('[')[0]}"):
        yield _numbers(match[0])[-4:]


def _tokens(match: re.Match[str], _before: str, after: str) -> Iterator[list[float]]:
    if not re.match(r"<[0-9]", after):
        yield _numbers(match[0])


def _pairs(match: re.Match[str], before: str, after: str) -> Iterator[list[float]]:
    """Pairs that come in twos; any other number of them is a point or a polygon."""
    if in_call(before) or _MORE_PAIRS.match(after):
        return
    if before.rstrip().endswith("["):  # in a list they are points
        return
    runs: list[list[float]] = []
    last, said = -1, match[0]
    for pair in _PAIR_RE.finditer(said):
        gap = said[last : pair.start()] if last >= 0 else "\n"
        if gap.strip() == "," or (not gap.strip() and "\n" not in gap):
            runs[-1] += _numbers(pair[0])
        else:
            runs.append(_numbers(pair[0]))
        last = pair.end()
    if all(len(run) == 4 for run in runs):
        yield from runs


def _named(match: re.Match[str], _before: str, _after: str) -> Iterator[list[float]]:
    items = [(re.sub(r"[-_ ]", "", key.lower()), float(n)) for key, n in _ITEM_RE.findall(match[0])]
    groups = [dict(items[i : i + 4]) for i in range(0, len(items), 4)]
    boxes = [_sides(group) for group in groups]
    if len(items) % 4 == 0:
        yield from (box for box in boxes if all(boxes))


def _sides(stated: dict[str, float]) -> list[float]:
    for names in _SIDES:
        if set(names) == set(stated):
            return [stated[name] for name in names]
    for names in _SIZES:
        if set(names) == set(stated):
            x, y, width, height = (stated[name] for name in names)
            return [x, y, x + width, y + height]
    return []


_READERS: dict[str, Callable[[re.Match[str], str, str], Iterator[list[float]]]] = {
    "list": _last_four,
    "nested": _nested,
    "tuple": _tuple,
    "corners": _corners,
    "behind": _last_four,
    "span": _span,
    "pairs": _pairs,
    "tokens": _tokens,
    "quoted": _last_four,
    "keyed": _keyed,
    "tagged": _last_four,
    "named": _named,
}
