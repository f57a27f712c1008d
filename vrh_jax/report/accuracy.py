"""Figures of accuracy: against the number of masked heads, how answers fail, other tasks."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from vrh_jax.report.style import (
    GREY,
    OUTCOMES,
    legend_below,
    new_figure,
    percent_axis,
    set_label,
    set_style,
)

Entry = Mapping[str, Any]
CONTROLS = ("random", "random_layer")
_FAILURE_COUNTS = {
    "mislocated": "mislocated",
    "wrong_answer": "wrong_answers",
    "invalid_box": "invalid_boxes",
    "parse_failure": "parse_failures",
    "image_error": "image_errors",
}


def select(entries: Sequence[Entry], **wanted: Any) -> list[Entry]:
    """Entries with the given values."""
    return [e for e in entries if all(e.get(key) == value for key, value in wanted.items())]


def accuracy_by_k(entries: Sequence[Entry], what: str) -> Figure:
    """Accuracy against the number of masked heads, every random draw as a dot.

    Args:
        entries: of ``accuracy`` for one model and benchmark.
        what: label of the vertical axis.
    """
    figure, axes = new_figure()
    ks = sorted({e["k"] for e in entries})
    place = {k: i for i, k in enumerate(ks)}
    base = select(entries, heads="none")
    handles = []
    if base:
        axes.axhline(base[0]["accuracy"], color=GREY, linewidth=1, linestyle=":")
    sets = sorted({e["heads"] for e in entries} - {"none"}, key=_set_order)
    shifts = {
        name: 0.07 * (i - (len(sets) - 1) / 2) for i, name in enumerate(sets)
    }  # draws of two kinds side by side
    for name in sets:
        color, marker = set_style(name, sum(":" in s for s in sets[: sets.index(name)]))
        points = {k: select(entries, heads=name, k=k) for k in ks}
        points = {k: found for k, found in points.items() if found}
        start = [(0, base[0])] if base else []
        x = [place[k] for k, _ in start] + [place[k] + shifts[name] for k in points]
        means = [e["accuracy"] for _, e in start] + [_mean(p) for p in points.values()]
        if name in CONTROLS:
            low = [min(e["accuracy"] for e in p) for p in points.values()]
            high = [max(e["accuracy"] for e in p) for p in points.values()]
            low, high = ([*(e["accuracy"] for _, e in start), *v] for v in (low, high))
            for k, found in points.items():
                dots = [e["accuracy"] for e in found]
                axes.plot(
                    [place[k] + shifts[name]] * len(dots), dots, ".",
                    color=color, alpha=0.55, markersize=5, markeredgewidth=0,
                )  # fmt: skip
        else:
            shown = [e for _, e in start] + [p[0] for p in points.values()]
            low, high = [e["ci_low"] for e in shown], [e["ci_high"] for e in shown]
        axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
        style: Any = "--" if name.startswith("transfer") else "-"
        axes.plot(x, means, style, color=color, marker=marker, markersize=5, linewidth=1.6)
        label = set_label(name)
        if name in CONTROLS:
            count = max(len(found) for found in points.values())
            label += f", {count} draws" if count > 1 else ", 1 draw"
        handles.append(
            Line2D([], [], color=color, marker=marker, markersize=5, linestyle=style, label=label)
        )
    if base:
        handles.append(
            Line2D([], [], color=GREY, linestyle=":", linewidth=1, label="no heads masked")
        )
    axes.set_xticks(range(len(ks)), [str(k) for k in ks])
    axes.set_xlabel("number of masked heads k")
    axes.set_ylabel(what)
    percent_axis(axes)
    axes.set_ylim(-0.02, 1.02)
    legend_below(figure, handles, columns=2)
    return figure


def _set_order(name: str) -> tuple[int, str]:
    kind = name.split(":", maxsplit=1)[0]
    return ("vrh", "transfer", "random_layer", "random").index(kind), name


def _mean(entries: Sequence[Entry]) -> float:
    return sum(e["accuracy"] for e in entries) / len(entries)


def shown_sets(entries: Sequence[Entry]) -> list[tuple[str, int]]:
    """(heads, k) in the order of tables and bars: none, then chosen and controls per k."""
    found = {(e["heads"], e["k"]) for e in entries}
    return sorted(
        found, key=lambda s: (s[1], s[0] != "none", _set_order(s[0]) if s[1] else (0, ""))
    )


def failure_bars(entries: Sequence[Entry]) -> Figure:
    """How the answers of every head set end, draws averaged.

    Args:
        entries: of ``accuracy`` for one model and benchmark.
    """
    sets = shown_sets(entries)
    figure, axes = new_figure(height=1.6 + 0.3 * len(sets))
    used = []
    for row, (heads, k) in enumerate(sets):
        draws = select(entries, heads=heads, k=k)
        shares = _shares(draws)
        left = 0.0
        for outcome, share in shares.items():
            color, hatch, _ = OUTCOMES[outcome]
            if share == 0:
                continue
            used.append(outcome)
            axes.barh(
                row, share, left=left, color=color, hatch=hatch, edgecolor="white", linewidth=0.4
            )
            if share >= 0.1:
                dark = outcome in ("right", "parse_failure")
                axes.text(
                    left + share / 2, row, f"{100 * share:.0f}", ha="center", va="center",
                    fontsize=7, color="white" if dark else "black",
                )  # fmt: skip
            left += share
    axes.set_yticks(range(len(sets)), [_row_label(h, k, entries) for h, k in sets], fontsize=8)
    axes.set_ylim(len(sets) - 0.4, -0.6)
    for row in range(1, len(sets)):
        if sets[row][1] != sets[row - 1][1]:
            axes.axhline(row - 0.5, color=GREY, linewidth=0.6)
    axes.set_xlabel("share of answers (numbers: per cent)")
    percent_axis(axes, horizontal=True)
    order = [o for o in OUTCOMES if o in used]
    handles = [
        Patch(
            facecolor=OUTCOMES[o][0], hatch=OUTCOMES[o][1], edgecolor="white", label=OUTCOMES[o][2]
        )
        for o in order
    ]
    legend_below(figure, handles)
    return figure


def _row_label(heads: str, k: int, entries: Sequence[Entry]) -> str:
    short = {
        "none": "none",
        "vrh": f"highest {k}",
        "random": f"random {k}",
        "random_layer": f"same layers {k}",
    }
    if heads in CONTROLS:
        return f"{short[heads]}, mean of {len(select(entries, heads=heads, k=k))}"
    return short.get(heads, f"{heads.partition(':')[2]}'s {k}")


def _shares(draws: Sequence[Entry]) -> dict[str, float]:
    total = sum(e["n"] for e in draws)
    shares = {"right": sum(e["correct"] for e in draws) / total}
    for outcome, column in _FAILURE_COUNTS.items():
        shares[outcome] = sum(e[column] for e in draws) / total
    return shares


def question_bars(entries: Sequence[Entry], names: Sequence[str], k: int) -> Figure:
    """Accuracy per question task without a mask, with the chosen heads and with random ones.

    Args:
        entries: of one model, each with ``name`` (the task's label).
        names: the tasks, in order.
        k: number of masked heads.
    """
    figure, axes = new_figure(width=max(4.2, 1.5 + 0.9 * len(names)))
    sets = [s for s in ("none", "vrh", "random_layer", "random") if select(entries, heads=s)]
    width = 0.8 / len(sets)
    for i, heads in enumerate(sets):
        color, _ = set_style(heads)
        for x, name in enumerate(names):
            found = select(entries, heads=heads, name=name, k=0 if heads == "none" else k)
            if not found:
                continue
            mean = _mean(found)
            values = [e["accuracy"] for e in found]
            ends = (found[0]["ci_low"], found[0]["ci_high"])
            low, high = (min(values), max(values)) if heads in CONTROLS else ends
            at = x + (i - (len(sets) - 1) / 2) * width
            face = "white" if heads == "none" else color
            axes.bar(at, mean, width * 0.9, color=face, edgecolor=color, linewidth=1)
            axes.vlines(at, low, high, color=GREY, linewidth=1.2)
    axes.set_xticks(range(len(names)), names, rotation=20 if len(names) > 3 else 0)
    axes.set_ylabel("right answers")
    axes.set_xlabel(f"questions (k = {k} heads masked)")
    percent_axis(axes)
    handles = [
        Patch(
            facecolor="white" if s == "none" else set_style(s)[0],
            edgecolor=set_style(s)[0],
            label=set_label(s) + (", range of draws" if s in CONTROLS else ", 95 % interval"),
        )
        for s in sets
    ]
    legend_below(figure, handles, columns=1)
    return figure
