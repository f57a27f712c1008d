"""Official scores of benchmarks that are more than the share of right answers.

Each comes beside the plain mean over the same answers. Answers that could not be read, and images
that could not, are wrong in both. Sources are in docs/benchmarks.md.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from vrh_jax.analysis.results import Cell, Key
from vrh_jax.answers.spatial import spatial457_leniency

MMSTAR_COUNT = 1500
LENIENCIES = ("none_is_no", "zero_is_no", "number_is_yes", "super_category")

Score = Mapping[str, Any]


def aggregates(cells: Mapping[Key, Cell]) -> list[dict[str, Any]]:
    """One entry per cell of a benchmark with categories or a rule of its own.

    Keys: those of the cell, ``rule``, ``n``, ``mean`` (right answers / n), ``official`` (None
    where it is not defined, such as for a part of the benchmark), ``definition`` (of
    ``official``), ``parts`` (list of name, n, mean) and ``measures`` (name -> number or None).
    """
    out = []
    for cell in cells.values():
        rules = np.unique(cell.rule)
        rule = str(rules[0])
        if len(rules) != 1 or rule not in _SCORES or (not rule and not cell.category.any()):
            continue
        out.append(
            {
                "model": cell.model,
                "benchmark": cell.benchmark,
                "heads": cell.heads,
                "k": cell.k,
                "draw": cell.draw,
                "rule": rule,
                "n": len(cell.correct),
                "mean": float(cell.correct.mean()),
                "official": None,
                "definition": "",
                "parts": [],
                "measures": {},
                **_SCORES[rule](cell),
            }
        )
    return out


def _parts(cell: Cell, names: np.ndarray) -> list[dict[str, Any]]:
    """Share of right answers by name, names in order; "" is no part."""
    return [
        {"name": str(name), "n": int((names == name).sum()),
         "mean": float(cell.correct[names == name].mean())}
        for name in np.unique(names) if name
    ]  # fmt: skip


def _level(cell: Cell, level: int) -> np.ndarray:
    """One level of the categories ("/" between levels); "" where there is none."""
    levels = [[*name.split("/"), "", ""][level] for name in cell.category]
    return np.array(levels, dtype=str)


def _levels(cell: Cell) -> list[dict[str, Any]]:
    """Parts by the first level of the categories, then by the whole where it has more."""
    whole = [part for part in _parts(cell, cell.category) if "/" in part["name"]]
    return _parts(cell, _level(cell, 0)) + whole


def _by_category(cell: Cell) -> Score:
    return {"parts": _levels(cell)}


def _cv_bench(cell: Cell) -> Score:
    sources = _level(cell, 0)
    by_source = {part["name"]: part["mean"] for part in _parts(cell, sources)}
    flat, deep, official = None, by_source.get("Omni3D"), None
    if "ADE20K" in by_source and "COCO" in by_source:
        flat = (by_source["ADE20K"] + by_source["COCO"]) / 2
    if flat is not None and deep is not None:
        official = (flat + deep) / 2
    return {
        "official": official,
        "definition": "1/2 * ((ADE20K + COCO) / 2 + Omni3D)",
        "parts": _parts(cell, sources) + _parts(cell, _level(cell, 1)),
        "measures": {"2D": flat, "3D": deep},
    }


def _mmstar(cell: Cell) -> Score:
    whole = len(cell.correct) == MMSTAR_COUNT
    return {
        "official": int(cell.official.sum()) / MMSTAR_COUNT if whole else None,
        "definition": f"right by the official extraction / {MMSTAR_COUNT}",
        "parts": _levels(cell),
        "measures": {"official extraction": float(cell.official.mean())},
    }


def _spatial457(cell: Cell) -> Score:
    lenient = [
        "" if right else spatial457_leniency(said, expected)
        for right, said, expected in zip(cell.correct, cell.reading, cell.expected, strict=True)
    ]
    counts = {name: lenient.count(name) for name in LENIENCIES}
    return {
        "official": float(cell.official.mean()),
        "definition": "right, or accepted by a leniency of the official scorer, / n",
        "measures": counts,
    }


def _spatialrgpt(cell: Cell) -> Score:
    read = cell.reading != ""
    said = np.array([float(text) for text in cell.reading[read]])
    true = np.array([float(text) for text in cell.expected[read]])
    error = np.abs(said - true) / true
    measures: dict[str, Any] = {
        "abs_rel_error": float(error.mean()) if len(error) else None,
        "unread": int((~read).sum()),
    }
    for part in np.unique(cell.category):
        own = error[cell.category[read] == part]
        measures[f"abs_rel_error {part}"] = float(own.mean()) if len(own) else None
    return {
        "official": float(cell.correct.mean()),
        "definition": "0.75 true <= said <= 1.25 true, / n; abs_rel_error over answers with a size",
        "parts": _parts(cell, cell.category),
        "measures": measures,
    }


def _mathvista(cell: Cell) -> Score:
    return {
        "official": float(cell.correct.mean()),
        "definition": "right answers / n",
        "parts": _parts(cell, _level(cell, 0)) + _parts(cell, _level(cell, 1)),
    }


def _countbench(cell: Cell) -> Score:
    return {
        "official": float(cell.correct.mean()),
        "definition": "right answers / n",
        "parts": _parts(cell, cell.expected),
    }


def _vaw(cell: Cell) -> Score:
    # VAW's own metrics are for scores of all attributes; the questions are this project's.
    parts = _parts(cell, cell.category)
    mean = float(np.mean([part["mean"] for part in parts]))
    return {"parts": parts, "measures": {"mean of types": mean}}


_SCORES: dict[str, Callable[[Cell], Score]] = {
    "": _by_category,
    "countbench": _countbench,
    "cv_bench": _cv_bench,
    "mathvista": _mathvista,
    "mmstar": _mmstar,
    "spatial457": _spatial457,
    "spatialrgpt": _spatialrgpt,
    "vaw": _vaw,
}
