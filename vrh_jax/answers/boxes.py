"""Boxes in printed answers: what a model states, never more.

A box is four numbers in a form that one of the model families is known to print; docs/answers.md
lists the forms and what is decided for each. Templates ("[x1, y1, x2, y2]"), points, polygons,
arithmetic and broken brackets are no boxes; nothing is repaired. The scale of the numbers belongs
to the model and is not looked at here.
"""

import re

from model_ports.box_format import BoxFormat
from vrh_jax.answers.box_forms import Box, loc_boxes, number_boxes
from vrh_jax.answers.clean import final_answer
from vrh_jax.answers.formats import box_format

# A stated answer; boxes before the last one are deliberation.
_CUE = re.compile(
    r"\b(?:final|correct) answer\b|^[ \t*#>]*+answer[ *]*+:|\\boxed\s*+\{",
    re.IGNORECASE | re.MULTILINE,
)
# Marks of LaTeX around brackets and numbers, and escapes of JSON inside a string.
_ESCAPES = re.compile(
    r"\\(?:left|right)(?![a-z])|\\[,;! ]|\\(?=[\[\](){}])|\\{1,8}+(?:(?=[\"'])|[nrt](?![a-z]))"
)


def parse_boxes(text: object, model: str | BoxFormat) -> list[Box]:
    """All boxes of an answer, in order, x0, y0, x1, y1 in the model's own units.

    After a declaration ("Final answer:", a line's "Answer:", LaTeX's ``boxed``) only what
    follows the last one counts, if it holds a box.

    Args:
        text: what the model printed; anything but a string holds no box. Never throws on it.
        model: name of a model or family, or its BoxFormat.

    Raises:
        UserError: for a model name of no known family.
    """
    form = model if isinstance(model, BoxFormat) else box_format(model)
    read = loc_boxes if "<loc" in form.template else number_boxes
    answer = _ESCAPES.sub("", final_answer(text))
    declared = 0
    for cue in _CUE.finditer(answer):
        declared = cue.end()
    return (declared and list(read(answer[declared:]))) or list(read(answer))


def parse_box(text: object, model: str | BoxFormat) -> Box | None:
    """The first box of an answer (see ``parse_boxes``), or None."""
    return next(iter(parse_boxes(text, model)), None)
