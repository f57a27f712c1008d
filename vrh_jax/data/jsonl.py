"""Your own samples: one JSON object per line.

Keys of a line: ``image`` (path relative to ``images``, or null), ``text`` (referring expression
or question), and

- for grounding: ``box``, four numbers in pixels of the stored image (EXIF orientation is
  ignored), as the option ``box`` says: [x0, y0, x1, y1], half-open, or [x, y, width, height];
- for questions: ``answer`` and optionally ``kind`` (text, count, number, choice), ``choices``,
  ``unit`` (of a number), ``box`` (the region that the answer depends on);
- optional: ``id``, ``image_id`` (default: the image's path), ``group`` (default: image_id),
  ``category``, ``needle`` (kind needle: the exact part of ``text`` that holds the answer).
"""

import dataclasses
import math
from pathlib import Path
from typing import Any, Literal, cast, get_args

from pydantic import Field

from model_ports.errors import UserError
from vrh_jax.answers import read_count
from vrh_jax.answers.reading import expected_choice
from vrh_jax.data.benchmarks.files import read_numbered
from vrh_jax.data.images import FileImage, image_key, stored_size
from vrh_jax.data.registry import Split, Task
from vrh_jax.data.sample import Sample, TaskKind
from vrh_jax.data.source import Key, Rows
from vrh_jax.strict import Strict, nearest

_KEYS = frozenset({"id", "image", "image_id", "group", "kind", "text", "box", "answer", "choices",
                   "needle", "unit", "category"})  # fmt: skip
BoxOrder = Literal["xyxy", "xywh"]


class JsonlOptions(Strict):
    """Options of the task ``jsonl``."""

    path: Path = Field(description="the .jsonl file; relative to the current folder")
    images: Path | None = Field(None, description="folder of the images; default: the file's")
    box: BoxOrder = Field("xyxy", description="what the four numbers of a box are")
    limit: int | None = Field(None, gt=0, description="read only this many lines")


@dataclasses.dataclass(frozen=True)
class _Line:
    """A checked line."""

    number: int
    raw: dict[str, Any]
    kind: TaskKind


@dataclasses.dataclass(frozen=True)
class _Loader:
    """Makes samples from lines."""

    path: Path
    images: Path
    box: BoxOrder

    def key(self, line: _Line) -> Key:
        raw = line.raw
        name = raw.get("image")
        image_id = str(raw.get("image_id") or (image_key(str(name)) if name else _id(line)))
        located = raw.get("box") is not None or bool(raw.get("needle"))
        return Key(image_id, _id(line), line.kind, located)

    def sample(self, line: _Line) -> Sample:
        raw, key = line.raw, self.key(line)
        name = raw.get("image")
        image = None if name is None else FileImage(self.images / str(name))
        return Sample(
            id=key.id,
            kind=line.kind,
            text=raw["text"],
            image=image,
            image_size=(0, 0) if image is None else stored_size(image),
            box=None if raw.get("box") is None else corners(raw["box"], self.box),
            answer=_text(raw.get("answer")),
            image_id=key.image_id,
            group=str(raw.get("group") or key.image_id),
            choices=tuple(str(c) for c in raw.get("choices") or ()),
            needle=raw.get("needle") or "",
            unit=str(raw.get("unit") or ""),
            category=str(raw.get("category") or ""),
            source=f"{self.path}#{line.number - 1}",
            row=raw,
        )


def corners(numbers: Any, order: BoxOrder) -> tuple[float, float, float, float]:
    """Four numbers as x0, y0, x1, y1."""
    a, b, c, d = (float(v) for v in numbers)
    return (a, b, c, d) if order == "xyxy" else (a, b, a + c, b + d)


def is_box(raw: Any) -> bool:
    """Whether a value is a list of four finite numbers."""
    return (
        isinstance(raw, list | tuple)
        and len(raw) == 4
        and all(isinstance(v, int | float) and not isinstance(v, bool) for v in raw)
        and all(math.isfinite(v) for v in raw)
    )


def _id(line: _Line) -> str:
    return str(line.raw.get("id") or f"line-{line.number}")


def _text(answer: Any) -> str:
    return "" if answer is None else str(answer)


def _check(raw: Any, number: int, options: JsonlOptions) -> _Line:
    where = f"{options.path}, line {number}"
    if not isinstance(raw, dict):
        raise UserError(f"{where}: expected a JSON object, found {type(raw).__name__}")
    for key in raw:
        if key not in _KEYS:
            hint = nearest(key, sorted(_KEYS))
            raise UserError(f"{where}: unknown key {key!r}{hint} (known: {sorted(_KEYS)})")
    if not isinstance(raw.get("text"), str) or not raw["text"]:
        raise UserError(f"{where}: 'text' must be the expression or question")
    answered = _text(raw.get("answer")) != ""
    kind = raw.get("kind") or ("text" if answered else "grounding")
    if kind not in get_args(TaskKind):
        raise UserError(f"{where}: kind = {kind!r}; expected one of {get_args(TaskKind)}")
    problem = _problem(raw, kind, answered, options.box)
    if problem:
        raise UserError(f"{where}: {problem}")
    return _Line(number, raw, cast(TaskKind, kind))


def _problem(raw: dict[str, Any], kind: Any, answered: bool, order: BoxOrder) -> str:
    """What is wrong with the target of a line, or ""."""
    box, needle = raw.get("box"), raw.get("needle")
    if box is not None and not is_box(box):
        return f"box = {box!r}; expected four numbers in pixels, {order}"
    for name in ("box", "image"):
        if kind == "grounding" and raw.get(name) is None:
            return f"a grounding sample needs {name!r}"
    if kind != "grounding" and not answered:
        return f"a {kind} sample needs 'answer'"
    if kind == "needle" and (not isinstance(needle, str) or raw["text"].count(needle) != 1):
        return "'needle' must be a part of 'text' that occurs exactly once"
    return _answer_problem(kind, _text(raw.get("answer")), raw.get("choices"))


def _answer_problem(kind: Any, answer: str, choices: Any) -> str:
    """Why no reading could ever equal the answer, or ""."""
    if choices is not None and not isinstance(choices, list):
        return f"choices = {choices!r}; expected a list of texts"
    if kind == "choice" and expected_choice(answer, [str(c) for c in choices or ()]) is None:
        return f"answer = {answer!r}; expected one of the choices, or its letter"
    if kind in ("count", "number") and read_count(answer) is None:
        return f"answer = {answer!r}; expected a number"
    return ""


def load(options: JsonlOptions, _split: Split, _count: int) -> Rows[_Line]:
    """All samples of the file; see the module's text for its keys."""
    numbered = read_numbered(options.path, options.limit)
    lines = [_check(raw, number, options) for number, raw in numbered]
    loader = _Loader(options.path, options.images or options.path.parent, options.box)
    return Rows(lines, loader)


TASK = Task(options=JsonlOptions, load=load, generated=False)
