"""Benchmarks by name: each task gives samples from its own checked options."""

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any, Literal

from model_ports.errors import UserError
from vrh_jax.config import BenchmarkSettings, Strict, nearest, parse_settings
from vrh_jax.data.sample import Sample

Split = Literal["detection", "evaluation"]


@dataclasses.dataclass(frozen=True)
class Task:
    """A kind of benchmark.

    Attributes:
        options: settings model of ``benchmarks.NAME.options``.
        load: (options, split, count) -> samples. A generated task makes ``count`` samples of
            the split, on images that no other split has; a finite one returns everything it
            has, and is then split by image.
        generated: samples are made on demand.
    """

    options: type[Strict]
    load: Callable[[Any, Split, int], list[Sample]]
    generated: bool


# Task name -> module with a TASK or TASKS of that name; imported when used.
_MODULES = {
    "jsonl": "vrh_jax.data.jsonl",
    "needle": "vrh_jax.data.needle",
    "organism": "vrh_jax.data.organism_task",
}


def task_names() -> list[str]:
    """Names that ``benchmarks.NAME.task`` may have."""
    return sorted(_MODULES)


def task(name: str) -> Task:
    """The task of this name."""
    if name not in _MODULES:
        known = task_names()
        raise UserError(f"task {name!r} is unknown{nearest(name, known)} (known: {known})")
    found: Task = importlib.import_module(_MODULES[name]).TASK
    return found


def load(
    name: str, settings: BenchmarkSettings, split: Split, count: int
) -> tuple[list[Sample], bool]:
    """Samples of a benchmark and whether they were generated for this split."""
    kind = task(settings.task)
    options = parse_settings(kind.options, settings.options, f"benchmarks.{name}.options")
    samples = kind.load(options, split, count)
    seen: set[str] = set()
    for sample in samples:
        if sample.id in seen:
            raise UserError(f"benchmark {name!r} has two samples with the id {sample.id!r}")
        seen.add(sample.id)
    return samples, kind.generated
