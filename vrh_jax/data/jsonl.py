"""Your own samples: one JSON object per line.

Keys of a line: ``image`` (path relative to the file, or null), ``text`` (referring expression
or question), and

- for grounding: ``box`` [x0, y0, x1, y1] in pixels of the stored image, half-open;
- for questions: ``answer`` and optionally ``kind`` (text, count, choice), ``choices``, ``box``
  (the region that the answer depends on);
- optional: ``id``, ``image_id`` (default: the image's path), ``group`` (default: image_id),
  ``needle`` (kind needle: the exact part of ``text`` that holds the answer).
"""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any, cast, get_args

from PIL import Image
from pydantic import Field

from model_ports.errors import UserError
from vrh_jax.config import Strict, nearest
from vrh_jax.data.registry import Split, Task
from vrh_jax.data.sample import Sample, TaskKind

_KEYS = frozenset({"id", "image", "image_id", "group", "kind", "text", "box", "answer", "choices",
                   "needle"})  # fmt: skip


class JsonlOptions(Strict):
    """Options of the task ``jsonl``."""

    path: Path = Field(description="the .jsonl file; relative to the current folder")
    limit: int | None = Field(None, gt=0, description="read only this many lines")


@dataclasses.dataclass(frozen=True)
class _File:
    """Loads an image when called."""

    path: Path

    def __call__(self) -> Image.Image:
        with Image.open(self.path) as image:
            return image.convert("RGB")


def _size(path: Path) -> tuple[int, int]:
    """Stored size from the file's header; (0, 0) if it cannot be read (judged later)."""
    try:
        with Image.open(path) as image:
            return image.size
    except Exception:  # noqa: BLE001 - any unreadable file is a failed sample, not a crash
        return (0, 0)


def _box(raw: Any, where: str) -> tuple[float, float, float, float] | None:
    if raw is None:
        return None
    numbers = (
        isinstance(raw, list)
        and len(raw) == 4
        and all(isinstance(v, int | float) and math.isfinite(v) for v in raw)
    )
    if not numbers:
        raise UserError(f"{where}: box = {raw!r}; expected four numbers [x0, y0, x1, y1] in pixels")
    return (float(raw[0]), float(raw[1]), float(raw[2]), float(raw[3]))


def _sample(raw: Any, number: int, path: Path) -> Sample:
    where = f"{path}, line {number}"
    if not isinstance(raw, dict):
        raise UserError(f"{where}: expected a JSON object, found {type(raw).__name__}")
    for key in raw:
        if key not in _KEYS:
            hint = nearest(key, sorted(_KEYS))
            raise UserError(f"{where}: unknown key {key!r}{hint} (known: {sorted(_KEYS)})")
    if not isinstance(raw.get("text"), str) or not raw["text"]:
        raise UserError(f"{where}: 'text' must be the expression or question")
    box = _box(raw.get("box"), where)
    kind = raw.get("kind") or ("text" if raw.get("answer") else "grounding")
    if kind not in get_args(TaskKind):
        raise UserError(f"{where}: kind = {kind!r}; expected one of {get_args(TaskKind)}")
    if kind == "grounding" and box is None:
        raise UserError(f"{where}: a grounding sample needs 'box'")
    if kind != "grounding" and not raw.get("answer"):
        raise UserError(f"{where}: a {kind} sample needs 'answer'")
    needle = raw.get("needle", "")
    if kind == "needle" and (not needle or raw["text"].count(needle) != 1):
        raise UserError(f"{where}: 'needle' must be a part of 'text' that occurs exactly once")
    name = raw.get("image")
    file = None if name is None else path.parent / str(name)
    image_id = str(raw.get("image_id") or name or f"line-{number}")
    return Sample(
        id=str(raw.get("id") or f"line-{number}"),
        kind=cast(TaskKind, kind),
        text=raw["text"],
        image=None if file is None else _File(file),
        image_size=(0, 0) if file is None else _size(file),
        box=box,
        answer=str(raw.get("answer", "")),
        image_id=image_id,
        group=str(raw.get("group") or image_id),
        choices=tuple(str(c) for c in raw.get("choices") or ()),
        needle=needle,
    )


def load(options: JsonlOptions, _split: Split, _count: int) -> list[Sample]:
    """All samples of the file; see the module's text for its keys."""
    try:
        lines = options.path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{options.path}: cannot be read ({error})") from None
    samples = []
    for number, line in enumerate(lines[: options.limit], start=1):
        if not line.strip():
            continue
        try:
            raw = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{options.path}, line {number}: not JSON ({error})") from None
        samples.append(_sample(raw, number, options.path))
    return samples


TASK = Task(options=JsonlOptions, load=load, generated=False)
