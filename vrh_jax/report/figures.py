"""All figures of a study, written to a folder, with a caption each."""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from vrh_jax.report.accuracy import accuracy_by_k, failure_bars, question_bars, select
from vrh_jax.report.heads import head_map, overlap_curve, transfer_scatter
from vrh_jax.report.style import save

Entry = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Picture:
    """A written figure.

    Attributes:
        section: part of the report that it belongs to.
        title, caption: what it shows.
        path: of the PNG.
    """

    section: str
    title: str
    caption: str
    path: Path


def is_boxes(entries: Sequence[Entry]) -> bool:
    """Whether the answers are boxes."""
    return any(e["mean_iou"] is not None for e in entries)


def cell_keys(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(model, benchmark) in the order of the models; where heads were found comes first."""
    models = [h["model"] for h in summary["heads"]]
    detected = summary["settings"]["detection"]["benchmark"]
    found = {(e["model"], e["benchmark"]) for e in summary["accuracy"]}
    return sorted(found, key=lambda c: (c[1] != detected, c[1], models.index(c[0])))


def question_names(summary: Mapping[str, Any]) -> list[Entry]:
    """Accuracy of question tasks, each with a ``name``: tasks of mixed benchmarks, else the
    benchmarks other than the one that heads were found on."""
    detected = summary["settings"]["detection"]["benchmark"]
    split = {(e["model"], e["benchmark"]) for e in summary["tasks"]}
    tasks = [{**e, "name": e["task"]} for e in summary["tasks"] if e["mean_iou"] is None]
    whole = [
        {**e, "name": e["benchmark"]}
        for e in summary["accuracy"]
        if e["mean_iou"] is None
        and (e["model"], e["benchmark"]) not in split
        and e["benchmark"] != detected
    ]
    return [*whole, *tasks]


def draw(summary: Mapping[str, Any], maps: Mapping[str, np.ndarray], folder: Path) -> list[Picture]:
    """Draw and write everything that the summary has numbers for.

    Args:
        maps: model -> mean scores [L, N].
    """
    out = []
    for section, title, caption, figure in _figures(summary, maps):
        name = re.sub(r"[^A-Za-z0-9]+", "-", f"{section} {title}").strip("-").lower()
        path = folder / f"{name}.png"
        save(figure, path)
        out.append(Picture(section, title, caption, path))
    return out


def _figures(
    summary: Mapping[str, Any], maps: Mapping[str, np.ndarray]
) -> Iterator[tuple[str, str, str, Figure]]:
    entries = summary["accuracy"]
    cells = cell_keys(summary)
    for model, benchmark in cells:
        found = select(entries, model=model, benchmark=benchmark)
        if len({e["k"] for e in found}) > 1:
            what = "boxes with IoU of at least 0.5" if is_boxes(found) else "right answers"
            yield (
                "accuracy", f"{model}, {benchmark}",
                (f"{model} on {benchmark}: accuracy against the number of masked heads. Bands: "
                "95 % Wilson interval, or the range of all draws for random heads."),
                accuracy_by_k(found, what),
            )  # fmt: skip
    for model, benchmark in cells:
        found = select(entries, model=model, benchmark=benchmark)
        yield (
            "failures", f"{model}, {benchmark}",
            f"{model} on {benchmark}: how the answers end, per masked set.",
            failure_bars(found),
        )  # fmt: skip
    yield from _questions(summary)
    yield from _maps(summary, maps)


def _questions(summary: Mapping[str, Any]) -> Iterator[tuple[str, str, str, Figure]]:
    named = question_names(summary)
    for model in sorted({e["model"] for e in named}):
        mine = select(named, model=model)
        ks = sorted({e["k"] for e in mine} - {0})
        names = list(dict.fromkeys(e["name"] for e in mine))
        if ks:
            yield (
                "questions", model,
                (f"{model}: questions with the same heads masked. Lines: 95 % Wilson interval, or "
                "the range of draws for random heads."),
                question_bars(mine, names, ks[-1]),
            )  # fmt: skip


def _maps(
    summary: Mapping[str, Any], maps: Mapping[str, np.ndarray]
) -> Iterator[tuple[str, str, str, Figure]]:
    ks = tuple(sorted({e["k"] for e in summary["effects"] if e["heads"] == "vrh"}))
    for heads in summary["heads"]:
        model, means = heads["model"], maps[heads["model"]]
        label = f"mean {heads['method'].replace('_', ' ')}"
        yield (
            "heads", model,
            (f"{model}: score of every head, mean over {heads['counted']} samples. The colour "
            "scale is a square root, so that small scores show."),
            head_map(means, ks or (min(10, means.size - 1),), label),
        )  # fmt: skip
    for curve in summary["overlap_curves"]:
        names = (curve["source"], curve["target"])
        pair = " and ".join(names)
        yield (
            "transfer", f"{pair}: scores",
            (f"Each dot is one head (layer and position), with its score in {names[0]} and in "
            f"{names[1]}."),
            transfer_scatter(maps[names[0]], maps[names[1]], names, ks[-1] if ks else 10),
        )  # fmt: skip
        yield (
            "transfer", f"{pair}: overlap",
            f"Share of the k highest-scoring heads that {pair} have in common.",
            overlap_curve(curve),
        )  # fmt: skip
