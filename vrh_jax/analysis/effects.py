"""What masking a head set does to accuracy, and what random sets of the same size do."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vrh_jax.analysis.intervals import wilson
from vrh_jax.analysis.paired import (
    Interval,
    effect_over_controls,
    holm,
    mcnemar,
    paired_difference,
    permutation_p,
)
from vrh_jax.analysis.results import Cell, Key

CONTROLS = ("random", "random_layer")
READABLE = ("", "mislocated", "wrong_answer", "invalid_box")


def accuracy(cell: Cell) -> dict[str, Any]:
    """Accuracy of a cell with its Wilson interval, and how its answers fail."""
    n, correct = len(cell.correct), int(cell.correct.sum())
    low, high = wilson(correct, n)
    count = {kind: int((cell.failure == kind).sum()) for kind in np.unique(cell.failure)}
    boxes = ~np.isnan(cell.iou)
    return {
        "model": cell.model,
        "benchmark": cell.benchmark,
        "heads": cell.heads,
        "k": cell.k,
        "draw": cell.draw,
        "n": n,
        "correct": correct,
        "accuracy": correct / n,
        "ci_low": low,
        "ci_high": high,
        "parse_failures": count.get("parse_failure", 0),
        "invalid_boxes": count.get("invalid_box", 0),
        "mislocated": count.get("mislocated", 0),
        "wrong_answers": count.get("wrong_answer", 0),
        "image_errors": count.get("image_error", 0),
        "readable": int(np.isin(cell.failure, READABLE).sum()) / n,
        "mean_iou": float(cell.iou[boxes].mean()) if boxes.any() else None,
        "mean_tokens": float(cell.n_tokens.mean()),
    }


def by_task(cells: Mapping[Key, Cell]) -> list[dict[str, Any]]:
    """Accuracy per task, of benchmarks that hold more than one."""
    out = []
    for cell in cells.values():
        tasks = np.unique(cell.task)
        if len(tasks) > 1:
            out += [
                {"task": str(task), **accuracy(cell.where(cell.task == task))} for task in tasks
            ]
    return out


def interval(name: str, value: Interval) -> dict[str, float]:
    """``name``, ``name_low`` and ``name_high``."""
    return {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}


def effects(cells: Mapping[Key, Cell], *, resamples: int, seed: int) -> list[dict[str, Any]]:
    """One entry per masked set that is no control: its drop, and the drop beyond controls.

    Per kind of control, ``p`` is the share of draws that lower accuracy at least as much,
    (1 + #) / (draws + 1), and ``p_holm`` adjusts it over all entries of the same kind of set
    and control.
    """
    out = []
    for cell in cells.values():
        if cell.heads == "none" or cell.heads in CONTROLS:
            continue
        base = cells.get((cell.model, cell.benchmark, "none", 0, 0))
        if base is None:
            raise ValueError(f"{cell.key}: there are no rows without a mask to compare with")
        entry = _drop(base, cell, resamples, seed)
        entry["controls"] = {
            kind: _against(base, cell, draws, resamples, seed)
            for kind in CONTROLS
            if (draws := _draws(cells, cell, kind))
        }
        out.append(entry)
    _adjust(out)
    return out


def _draws(cells: Mapping[Key, Cell], cell: Cell, kind: str) -> list[Cell]:
    wanted = (cell.model, cell.benchmark, kind, cell.k)
    return [c for key, c in cells.items() if key[:4] == wanted]


def _drop(base: Cell, cell: Cell, resamples: int, seed: int) -> dict[str, Any]:
    drop = paired_difference(base.correct, cell.correct, base.group, resamples=resamples, seed=seed)
    lost, gained, p = mcnemar(base.correct, cell.correct)
    unreadable = [~np.isin(c.failure, READABLE) for c in (base, cell)]
    fewer, more, p_read = mcnemar(*unreadable)
    before = float(base.correct.mean())
    return {
        "model": cell.model,
        "benchmark": cell.benchmark,
        "heads": cell.heads,
        "k": cell.k,
        "n": len(cell.correct),
        "groups": len(np.unique(cell.group)),
        "baseline": before,
        "accuracy": float(cell.correct.mean()),
        **interval("drop", drop),
        "retained": float(cell.correct.mean()) / before if before else None,
        "mcnemar": {"lost": lost, "gained": gained, "p": p},
        "unreadable": {"newly_readable": fewer, "newly_unreadable": more, "p": p_read},
    }


def _against(
    base: Cell, cell: Cell, draws: Sequence[Cell], resamples: int, seed: int
) -> dict[str, Any]:
    right = np.stack([c.correct for c in draws])
    means = right.mean(axis=1)
    before = float(base.correct.mean())
    effect = effect_over_controls(cell.correct, right, cell.group, resamples=resamples, seed=seed)
    observed = before - float(cell.correct.mean())
    return {
        "draws": len(draws),
        "mean": float(means.mean()),
        "min": float(means.min()),
        "median": float(np.median(means)),
        "max": float(means.max()),
        "retained": float(means.mean()) / before if before else None,
        "readable": float(np.mean([np.isin(c.failure, READABLE).mean() for c in draws])),
        **interval("effect", effect),
        "p": permutation_p(observed, before - means),
    }


def _adjust(entries: list[dict[str, Any]]) -> None:
    """Add ``p_holm`` within every family: kind of set (own, transferred) and control."""
    families: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for entry in entries:
        for kind, control in entry["controls"].items():
            families.setdefault((entry["heads"].split(":")[0], kind), []).append(control)
    for family in families.values():
        for control, p in zip(family, holm([c["p"] for c in family]), strict=True):
            control["p_holm"] = p
