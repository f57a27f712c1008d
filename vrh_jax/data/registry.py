"""Benchmarks by name: each task gives samples from its own checked options."""

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any, Literal

from model_ports.errors import UserError
from vrh_jax.config import BenchmarkSettings
from vrh_jax.data.source import Source, keys
from vrh_jax.strict import Strict, nearest, parse_settings

Split = Literal["detection", "evaluation"]


@dataclasses.dataclass(frozen=True)
class Task:
    """A kind of benchmark.

    Attributes:
        options: settings model of ``benchmarks.NAME.options``.
        load: (options, split, count) -> samples. A generated task makes ``count`` samples of
            the split, on images that no other split has; a finite one returns everything it
            has as a lazy source, and is then split by image.
        generated: samples are made on demand.
    """

    options: type[Strict]
    load: Callable[[Any, Split, int], Source]
    generated: bool


# Task name -> module with its TASK, or with several TASKS by name; imported when used.
_MODULES = {
    "countbench": "vrh_jax.data.benchmarks.countbench",
    "cv_bench": "vrh_jax.data.benchmarks.cv_bench",
    "jsonl": "vrh_jax.data.jsonl",
    "mathvista": "vrh_jax.data.benchmarks.mathvista",
    "mmstar": "vrh_jax.data.benchmarks.mmstar",
    "multiple_choice": "vrh_jax.data.benchmarks.multiple_choice",
    "needle": "vrh_jax.data.needle",
    "organism": "vrh_jax.data.organism_task",
    "refcoco": "vrh_jax.data.benchmarks.refcoco",
    "refcocog": "vrh_jax.data.benchmarks.refcoco",
    "refcocoplus": "vrh_jax.data.benchmarks.refcoco",
    "refspatial": "vrh_jax.data.benchmarks.refspatial",
    "toloka": "vrh_jax.data.benchmarks.toloka",
    "spatial457": "vrh_jax.data.benchmarks.spatial457",
    "spatialrgpt": "vrh_jax.data.benchmarks.spatialrgpt",
    "vaw": "vrh_jax.data.benchmarks.vaw",
}


def task_names() -> list[str]:
    """Names that ``benchmarks.NAME.task`` may have."""
    return sorted(_MODULES)


def task(name: str) -> Task:
    """The task of this name."""
    if name not in _MODULES:
        known = task_names()
        raise UserError(f"task {name!r} is unknown{nearest(name, known)} (known: {known})")
    module = importlib.import_module(_MODULES[name])
    found: Task = module.TASKS[name] if hasattr(module, "TASKS") else module.TASK
    return found


def load(name: str, settings: BenchmarkSettings, split: Split, count: int) -> tuple[Source, bool]:
    """Samples of a benchmark and whether they were generated for this split."""
    kind = task(settings.task)
    options = parse_settings(kind.options, settings.options, f"benchmarks.{name}.options")
    samples = kind.load(options, split, count)
    seen: set[str] = set()
    for key in keys(samples):
        if key.id in seen:
            raise UserError(f"benchmark {name!r} has two samples with the id {key.id!r}")
        seen.add(key.id)
    return samples, kind.generated
