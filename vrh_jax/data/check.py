"""What a benchmark's files hold: counts, boxes, duplicates, missing images.

Nothing is repaired. Faults are counted with an example each, so that a study of the same files
can be trusted, or not.
"""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from model_ports.errors import UserError
from vrh_jax.data.images import ImageRef, readable
from vrh_jax.data.sample import Sample
from vrh_jax.data.source import Source

UNITS = ("samples", "sentences", "refs", "distinct_boxes", "images")


@dataclasses.dataclass
class Faults:
    """A count with the first example of each kind."""

    found: Counter[str] = dataclasses.field(default_factory=Counter)
    examples: dict[str, str] = dataclasses.field(default_factory=dict)

    def add(self, kind: str, example: str) -> None:
        """One more of a kind."""
        self.found[kind] += 1
        self.examples.setdefault(kind, example)

    def describe(self, kinds: Iterable[str]) -> dict[str, Any]:
        """Counts of these kinds, with examples where there are any."""
        out: dict[str, Any] = {kind: self.found[kind] for kind in kinds}
        examples = {k: self.examples[k] for k in kinds if k in self.examples}
        return out | ({"examples": examples} if examples else {})


def check(task: str, source: Source, *, split: str = "", decode: bool = False) -> dict[str, Any]:
    """Everything `vrh data check` says about one split, as plain values.

    Args:
        task: whose published counts are compared.
        split: restricts that comparison; "" compares with all splits.
        decode: decode every image instead of reading its header.
    """
    samples, faults = [], Faults()
    for index in range(len(source)):
        try:
            samples.append(source[index])
        except UserError as error:
            faults.add("unusable", str(error))
    counts = _counts(samples)
    return {
        "task": task,
        "split": split,
        **counts,
        "kinds": dict(Counter(s.kind for s in samples)),
        "matches": matches(task, split, counts),
        **faults.describe(["unusable"]),
        "boxes": _boxes(samples),
        "texts": _texts(samples),
        "image_files": _images(samples, decode=decode),
    }


def _target(sample: Sample) -> Any:
    """Identity of the object that a grounding sample is about."""
    return sample.row.get("ref_id", (sample.image_id, sample.box))


def _counts(samples: list[Sample]) -> dict[str, int]:
    grounding = [s for s in samples if s.kind == "grounding"]
    counts = {"samples": len(samples), "images": len({s.image_id for s in samples})}
    if grounding:
        counts["sentences"] = len(grounding)
        counts["refs"] = len({_target(s) for s in grounding})
        counts["distinct_boxes"] = len({(s.image_id, s.box) for s in grounding})
    return counts


@cache
def published() -> dict[str, list[dict[str, Any]]]:
    """The entries of counts.yaml."""
    return dict(yaml.safe_load(Path(__file__).with_name("counts.yaml").read_text()))


def matches(task: str, split: str, counts: dict[str, int]) -> list[str]:
    """Published counts that these equal, each as a line."""
    out = []
    for entry in published().get(task, ()):
        if split and entry.get("split", split) != split:
            continue
        units = [unit for unit in UNITS if unit in entry]
        if all(counts.get(unit) == entry[unit] for unit in units):
            numbers = ", ".join(f"{entry[unit]:,} {unit.replace('_', ' ')}" for unit in units)
            out.append(f"{numbers}: {entry['whose']}")
    return out


def _boxes(samples: list[Sample]) -> dict[str, Any]:
    """Sanity of boxes against annotated image sizes."""
    boxed = [s for s in samples if s.box is not None]
    sized = [s for s in boxed if s.image_size != (0, 0)]
    faults, beyond = Faults(), 0
    areas, aspects = [], []
    for s in boxed:
        assert s.box is not None  # noqa: S101 - for the type checker
        x0, y0, x1, y1 = s.box
        if x0 >= x1 or y0 >= y1:
            faults.add("degenerate", f"{s.id}: {s.box}")
            continue
        areas.append((x1 - x0) * (y1 - y0))
        aspects.append((x1 - x0) / (y1 - y0))
    for s in sized:
        assert s.box is not None  # noqa: S101 - for the type checker
        right, bottom = s.box[2] - s.image_size[0], s.box[3] - s.image_size[1]
        if min(s.box[0], s.box[1]) < -0.5 or max(right, bottom) > 0.5:
            faults.add("out_of_bounds", f"{s.id}: {s.box} in {s.image_size}")
        beyond += abs(max(right, bottom) - 1) < 0.02
        if min(abs(right), abs(bottom)) < 0.5:
            faults.add("touch_right_or_bottom", f"{s.id}: {s.box} in {s.image_size}")
    out = {
        "boxes": len(boxed),
        "with_image_size": len(sized),
        **faults.describe(["degenerate", "out_of_bounds", "touch_right_or_bottom"]),
    }
    if areas:
        out |= {
            "least_area": round(min(areas), 1),
            "aspect_ratios": [round(min(aspects), 3), round(max(aspects), 3)],
        }
    hints = _hints(boxed, faults, beyond)
    return out | ({"hints": hints} if hints else {})


def _hints(boxed: list[Sample], faults: Faults, beyond: int) -> list[str]:
    """What a pattern of faults usually means."""
    hints = []
    outside = faults.found["out_of_bounds"]
    if beyond and beyond == outside:
        hints.append(
            f"{beyond} boxes end exactly one pixel beyond their image, and none further: corners "
            "may be x + width + 1, y + height + 1 (option plus_one)"
        )
    elif faults.found["degenerate"] > 0.01 * len(boxed):
        hints.append("many boxes end before they begin: they may be xywh read as xyxy")
    elif outside > 0.01 * len(boxed):
        hints.append("many boxes leave their image: is it xyxy read as xywh, or another size?")
    largest = max((max(s.box) for s in boxed if s.box is not None), default=2.0)
    if largest <= 1.0:
        hints.append("no coordinate exceeds 1: they may be fractions of the image, not pixels")
    return hints


def _texts(samples: list[Sample]) -> dict[str, Any]:
    """Repeated and ambiguous texts."""
    faults = Faults()
    said: Counter[Any] = Counter()
    named: dict[tuple[str, str], set[Any]] = defaultdict(set)
    for s in samples:
        if not s.text.strip():
            faults.add("empty", s.id)
        if not s.text.isascii():
            faults.add("not_ascii", f"{s.id}: {s.text}")
        if s.kind != "grounding":
            continue
        if said[s.image_id, _target(s), s.text]:
            faults.add("repeated_for_one_ref", f"{s.id}: {s.text}")
        said[s.image_id, _target(s), s.text] += 1
        named[s.image_id, s.text].add(_target(s))
    for (image, text), targets in named.items():
        if len(targets) > 1:
            faults.add("names_several_refs", f"{image}: {text} ({len(targets)} refs)")
    return faults.describe(["empty", "not_ascii", "repeated_for_one_ref", "names_several_refs"])


def _images(samples: list[Sample], *, decode: bool) -> dict[str, Any]:
    """Whether each image is there, readable and of its annotated size."""
    faults, seen, good = Faults(), set(), 0
    for s in samples:
        if s.image is None or s.image_id in seen:
            continue
        seen.add(s.image_id)
        kind, reason = _image_fault(s, decode=decode)
        if kind:
            faults.add(kind, reason)
        good += not kind
    return {"images": len(seen), "good": good} | faults.describe(
        ["missing", "unreadable", "another_size"]
    )


def _image_fault(sample: Sample, *, decode: bool) -> tuple[str, str]:
    """(kind of fault or "", reason)."""
    assert sample.image is not None  # noqa: S101 - the caller looked
    image: Any = sample.image
    reason = readable(image)
    if reason:
        path = getattr(image, "path", None)
        absent = path is not None and not path.exists()
        return ("missing", str(path)) if absent else ("unreadable", f"{sample.id}: {reason}")
    size = _size(image, decode=decode)
    if isinstance(size, str):
        return "unreadable", f"{sample.id}: {size}"
    if size != sample.image_size:
        return "another_size", f"{sample.image_id}: stored {size}, annotated {sample.image_size}"
    return "", ""


def _size(image: ImageRef, *, decode: bool) -> tuple[int, int] | str:
    """Stored size, or why it cannot be read."""
    if not decode and hasattr(image, "open"):
        with image.open() as opened:
            return opened.size
    try:
        return image().size
    except Exception as error:  # noqa: BLE001 - the reason is reported
        return str(error)
