"""Boxes in printed answers: what a model states, never more.

A box is four numbers in a form that one of the model families is known to print. Templates
("[x1, y1, x2, y2]"), points, polygons, arithmetic and broken brackets are no boxes; nothing is
repaired. The scale of the numbers belongs to the model and is not looked at here.
"""

# ruff: noqa: RUF001 - such characters are in the texts that are read

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from model_ports.errors import UserError
from vrh_jax.answers.clean import final_answer

if TYPE_CHECKING:
    from model_ports.port import BoxFormat

Box = tuple[float, float, float, float]
Syntax = Literal["numbers", "loc"]

# How each family writes; matched inside the name, so "OpenGVLab/InternVL3-8B" is found too.
# "loc" is PaliGemma's <locDDDD> x 4, y before x; the others print numbers, x first.
_FAMILIES: dict[str, Syntax] = {
    "paligemma": "loc",
    "qwen": "numbers",
    "internvl": "numbers",
    "llava": "numbers",
    "magma": "numbers",
    "deepseek": "numbers",
    "glm": "numbers",
    "phi": "numbers",
    # relatives whose answers circulate in the same forms
    "internlm": "numbers",
    "cogvlm": "numbers",
    "cogagent": "numbers",
    "kimi": "numbers",
    "rexomni": "numbers",
    "allseeing": "numbers",
    # the models that ship with the project
    "organism": "numbers",
    "intern": "numbers",
    "control": "numbers",
}

_N = r"[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?"
_Q = rf"[\"']?{_N}[\"']?"  # JSON now and then holds the numbers as strings
_COMMA = r"\s*+,\s*+"
_PAIR = rf"\(\s*+{_N}{_COMMA}{_N}\s*+\)"
_GAP = r"(?:\s*+,\s*+|\s++)"
_FOUR = _COMMA.join([_Q] * 4)
_BARE = _GAP.join([_N] * 4)
_FORMS = re.compile(
    rf"(?P<list>\[\s*+{_FOUR}\s*+\])"
    rf"|(?P<tuple>\(\s*+{_FOUR}\s*+\))"
    rf"|(?P<pairs>{_PAIR}(?:{_COMMA}{_PAIR})*+)"
    r"|(?P<tokens>(?:<[0-9]++>\s*+)++)"
    rf"|(?P<attribute>bbox\s*+=\s*+[\"']\s*+{_BARE}\s*+[\"'])"
    rf"|(?P<tagged><\|?(?:box|bbox|det)(?:_start)?\|?>\s*+{_BARE}(?=\s*+<))"
)
_LOC = re.compile(r"(?:<loc[0-9]{4}>\s*+)++")
_NUMBER = re.compile(_N)

# A list under such a key, or in such a tag or call, is something else than a box.
_OTHER = r"(?:[\w-]*(?:point|poly|quad|segm|mask|contour|colou?r|rgb|stroke)[\w-]*)"
_KEYED = re.compile(rf"{_OTHER}[\"']?\s*[:=]\s*[\[\]()\s,0-9.+-]*\Z", re.IGNORECASE)
_IN_TAG = re.compile(rf"<\|?{_OTHER}\|?>[\[(\s]*\Z", re.IGNORECASE)
_CALL = re.compile(r"\b(?:click|tap|drag|swipe|scroll|points?|move\w*)\s*\Z", re.IGNORECASE)
_FUNCTION = re.compile(r"(?!(?<=box)|(?<=rect))(?<=\w)\Z", re.IGNORECASE)
_SUM_BEFORE = re.compile(r"[0-9)\]]\s*[+*/×÷-]\s*\Z")
_SUM_AFTER = re.compile(r"\s*(?:[+/=×÷-]|\*(?!\*))\s*[0-9(\[]")
_MORE = re.compile(r"\s*,?\s*(?:\(|<(?=[0-9]))|,\s*\Z")


def parse_boxes(text: object, model: "str | BoxFormat") -> list[Box]:
    """All boxes of an answer, in order, x0, y0, x1, y1 in the model's own units.

    Args:
        text: what the model printed; anything but a string holds no box. Never throws on it.
        model: name of a model or family, or its BoxFormat.

    Raises:
        UserError: for a model name of no known family.
    """
    loc = _syntax(model) == "loc"
    return list((_loc_boxes if loc else _number_boxes)(final_answer(text)))


def parse_box(text: object, model: "str | BoxFormat") -> Box | None:
    """The first box of an answer (see ``parse_boxes``), or None."""
    return next(iter(parse_boxes(text, model)), None)


def _syntax(model: "str | BoxFormat") -> Syntax:
    if not isinstance(model, str):
        return "loc" if "<loc" in model.template else "numbers"
    name = re.sub(r"[^a-z0-9]", "", model.lower())
    for family, syntax in _FAMILIES.items():
        if family in name:
            return syntax
    raise UserError(
        f"no box format is known for model {model!r}; expected a name that contains one of "
        f"{', '.join(_FAMILIES)}, or pass the port's BoxFormat"
    )


def _loc_boxes(text: str) -> Iterator[Box]:
    for match in _LOC.finditer(text):
        found = [float(n) for n in re.findall(r"[0-9]{4}", match[0])]
        if len(found) == 4 and not text.startswith("<loc", match.end()):
            y0, x0, y1, x1 = found
            yield x0, y0, x1, y1


def _number_boxes(text: str) -> Iterator[Box]:
    for match in _FORMS.finditer(text):
        numbers = [float(n) for n in _NUMBER.findall(match[0])]
        if len(numbers) != 4 or not all(map(math.isfinite, numbers)):
            continue
        before = text[max(0, match.start() - 300) : match.start()]
        after = text[match.end() : match.end() + 40]
        if not _something_else(match.lastgroup or "", before, after):
            x0, y0, x1, y1 = numbers
            yield x0, y0, x1, y1


def _something_else(form: str, before: str, after: str) -> bool:
    """Whether the surroundings say that four numbers are not a box."""
    if _KEYED.search(before) or _IN_TAG.search(before):
        return True
    if _SUM_BEFORE.search(before) or _SUM_AFTER.match(after):
        return True
    if form == "tuple":
        return bool(_FUNCTION.search(before))
    if form == "pairs":  # in a list they are points; with more to come, a cut polygon
        listed = before.rstrip().endswith("[")
        return listed or bool(_CALL.search(before) or _MORE.match(after))
    return form == "tokens" and bool(_MORE.match(after) and after.lstrip().startswith("<"))
