"""summary.json: every number of the study, recomputed from rows and scores."""

import importlib.metadata
import json
import platform
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from vrh_jax.engine.store import Row, write_json
from vrh_jax.study.layout import Layout
from vrh_jax.study.plan import Plan
from vrh_jax.study.rows import read_rows
from vrh_jax.study.state import State

PACKAGES = ("vrh-jax", "jax", "jaxlib", "flax", "transformers", "numpy", "xarray", "pyarrow")


def read_summary(layout: Layout) -> dict[str, Any]:
    """The written summary."""
    return dict(json.loads(layout.summary.read_text()))


def versions() -> dict[str, str]:
    """Python and the packages that results may depend on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def wilson(correct: int, n: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson interval."""
    if n == 0:
        return 0.0, 1.0
    p = correct / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return float(centre - half), float(centre + half)


def accuracy(rows: Sequence[Row]) -> dict[str, Any]:
    """One entry of the list ``accuracy``: rows of one (model, benchmark, mask)."""
    first = rows[0]
    correct = sum(bool(r["correct"]) for r in rows)
    low, high = wilson(correct, len(rows))
    failures = [r["failure"] for r in rows]
    return {
        "model": first["model"],
        "benchmark": first["benchmark"],
        "heads": first["heads"],
        "k": first["k"],
        "draw": first["draw"],
        "n": len(rows),
        "correct": correct,
        "accuracy": correct / len(rows),
        "ci_low": low,
        "ci_high": high,
        "parse_failures": failures.count("parse_failure"),
        "invalid_boxes": failures.count("invalid_box"),
        "mislocated": failures.count("mislocated"),
        "wrong_answers": failures.count("wrong_answer"),
        "image_errors": failures.count("image_error"),
    }


def row_files(layout: Layout) -> Iterable[list[Row]]:
    """The rows of every (model, benchmark, mask), in order of their paths."""
    for path in sorted((layout.out / "rows").rglob("*.parquet")):
        yield read_rows(path)


def write_summary(plan: Plan, layout: Layout, state: State) -> dict[str, Any]:
    """Compute and write summary.json."""
    entries = [accuracy(rows) for rows in row_files(layout)]
    summary = {
        "study": plan.config.name,
        "accuracy": entries,
        "transfer": [],
        "versions": versions(),
        "settings": {"hash": state.hash, **state.settings},
        "fingerprints": state.fingerprints,
        "wall_s": round(state.wall_s, 1),
    }
    write_json(layout.summary, summary)
    return summary
