"""Multiple-choice questions of your own: one JSON object per line (or a JSON list).

Keys: ``image`` (path relative to the file or to ``images``), ``question``, ``choices`` (a list, or
an object from letters to texts), ``answer`` (an option's text, its letter, or its number from 0);
optional ``id``, ``image_id``, ``group``, ``category``, and ``box`` [x0, y0, x1, y1] in stored
pixels, the region that the answer depends on.
"""

import math
from typing import Any

from model_ports.errors import UserError
from vrh_jax.data.benchmarks.questions import (
    Box,
    Question,
    QuestionOptions,
    option_of,
    questions,
)
from vrh_jax.data.benchmarks.records import Record, read_records
from vrh_jax.data.registry import Split, Task
from vrh_jax.data.source import Rows
from vrh_jax.strict import nearest

_KEYS = ("answer", "box", "category", "choices", "group", "id", "image", "image_id", "question")


class MultipleChoiceOptions(QuestionOptions):
    """Options of the task ``multiple_choice``."""


def load(options: MultipleChoiceOptions, _split: Split, _count: int) -> Rows[Question]:
    """All questions of the file; see the module's text for its keys."""
    records = read_records(
        options.path, columns=("image", "question", "choices", "answer"), images=options.images
    )
    return questions([_question(record) for record in records])


TASK = Task(options=MultipleChoiceOptions, load=load, generated=False)


def _question(record: Record) -> Question:
    row, source = record.row, record.source
    for key in row:
        if key not in _KEYS:
            hint = nearest(str(key), list(_KEYS))
            raise UserError(f"{source}: unknown key {key!r}{hint} (known: {', '.join(_KEYS)})")
    choices = _choices(row["choices"], source)
    number = source.rpartition("#")[2]
    image_id = str(row.get("image_id") or row["image"])
    return Question(
        id=str(row.get("id") or f"line-{int(number) + 1}"),
        kind="choice",
        text=record.text("question"),
        answer=_answer(row["answer"], choices, source),
        image=record.picture(),
        image_id=image_id,
        group=str(row.get("group") or image_id),
        source=source,
        category=str(row.get("category") or ""),
        choices=choices,
        box=_box(row.get("box"), source),
        row=row,
    )


def _choices(raw: Any, source: str) -> tuple[str, ...]:
    if isinstance(raw, dict):
        letters = sorted(str(key) for key in raw)
        if letters != list("ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: len(raw)]):
            raise UserError(f"{source}: options {letters}; expected the letters from A on")
        raw = [raw[letter] for letter in letters]
    if not isinstance(raw, list) or not 2 <= len(raw) <= 26:
        raise UserError(f"{source}: choices = {raw!r}; expected 2 to 26 texts")
    choices = tuple(str(choice) for choice in raw)
    twice = [choice for choice in choices if choices.count(choice) > 1]
    if twice:
        raise UserError(f"{source}: the option {twice[0]!r} is given twice")
    return choices


def _answer(raw: Any, choices: tuple[str, ...], source: str) -> str:
    if isinstance(raw, int) and not isinstance(raw, bool) and str(raw) not in choices:
        if not 0 <= raw < len(choices):
            raise UserError(f"{source}: answer {raw} is no option's number (0 is the first)")
        return choices[raw]
    return option_of(str(raw), choices, source)


def _box(raw: Any, source: str) -> Box | None:
    if raw is None:
        return None
    try:
        x0, y0, x1, y1 = (float(v) for v in raw)
    except (TypeError, ValueError):
        x0 = math.nan
    if not math.isfinite(x0) or not all(map(math.isfinite, (y0, x1, y1))):
        raise UserError(f"{source}: box = {raw!r}; expected four numbers [x0, y0, x1, y1]")
    return x0, y0, x1, y1
