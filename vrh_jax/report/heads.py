"""Figures of head scores: maps, and two models against each other.

Axis letters: L layers, N heads.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from vrh_jax.report.style import GREEN, GREY, ORANGE, SKY, VERMILION, legend_below, new_figure

# Red shows on both ends of cividis.
MARK = "#D00000"


def top_heads(means: np.ndarray, k: int) -> list[tuple[int, int]]:
    """The k highest heads of a map [L, N], ties to the lower layer and head."""
    order = np.argsort(-means, axis=None, kind="stable")[:k]
    return [(int(h) // means.shape[1], int(h) % means.shape[1]) for h in order]


def head_map(means: np.ndarray, ks: tuple[int, ...], label: str) -> Figure:
    """Scores of all heads with the masked sets marked.

    Args:
        means: [L, N].
        ks: sizes of the masked sets, ascending; each head carries the mark of the smallest.
        label: what the score is.
    """
    layers, n_heads = means.shape
    figure, axes = new_figure(height=min(7.0, 2.2 + 0.16 * layers))
    axes.spines[:].set_visible(False)
    high = max(float(means.max()), 1e-9)
    image = axes.imshow(
        means, cmap="cividis", norm=PowerNorm(0.5, vmin=min(0.0, float(means.min())), vmax=high),
        aspect="auto", origin="lower", interpolation="nearest",
    )  # fmt: skip
    marks = ("o", "s", "D", "^", "v", "P")
    done: set[tuple[int, int]] = set()
    handles = []
    for k, mark in zip(ks, marks, strict=False):
        new = [h for h in top_heads(means, k) if h not in done]
        done.update(new)
        size = float(np.clip(150 / max(layers, n_heads), 3.0, 8))
        axes.plot(
            [h for _, h in new], [layer for layer, _ in new], mark, markersize=size,
            markerfacecolor="none", markeredgecolor=MARK, markeredgewidth=1.3, linestyle="none",
        )  # fmt: skip
        handles.append(
            Line2D(
                [],
                [],
                marker=mark,
                linestyle="none",
                markerfacecolor="none",
                markeredgecolor=MARK,
                label=f"{k} highest",
            )
        )
    axes.set_xlabel("head")
    axes.set_ylabel("layer")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.yaxis.get_major_locator().set_params(integer=True)
    bar = figure.colorbar(image, ax=axes, label=label)
    bar.outline.set_visible(False)
    legend_below(figure, handles, columns=3)
    return figure


def transfer_scatter(
    source: np.ndarray, target: np.ndarray, names: tuple[str, str], k: int
) -> Figure:
    """One dot per head: its score in one model against its score in the other.

    Args:
        source, target: [L, N].
        names: of the two models.
        k: heads among the k highest of one or both are coloured.
    """
    figure, axes = new_figure()
    tops = [set(top_heads(m, k)) for m in (source, target)]
    groups = [
        ("among neither's highest", GREY, ".", lambda h: h not in tops[0] | tops[1]),
        (f"only {names[0]}'s {k} highest", SKY, "v", lambda h: h in tops[0] - tops[1]),
        (f"only {names[1]}'s {k} highest", ORANGE, "^", lambda h: h in tops[1] - tops[0]),
        ("among both's highest", VERMILION, "o", lambda h: h in tops[0] & tops[1]),
    ]
    handles = []
    heads = list(np.ndindex(*source.shape))
    for label, color, marker, belongs in groups:
        chosen = [h for h in heads if belongs(h)]
        x, y = [max(source[h], 0) for h in chosen], [max(target[h], 0) for h in chosen]
        axes.plot(
            x, y, marker, color=color, linestyle="none", markersize=5, alpha=0.75, clip_on=False,
            markeredgewidth=0,
        )  # fmt: skip
        handles.append(
            Line2D([], [], color=color, marker=marker, linestyle="none",
                   label=f"{label} ({len(chosen)})")
        )  # fmt: skip
    for axis, values in (("x", source), ("y", target)):
        getattr(axes, f"set_{axis}scale")("function", functions=(_root, np.square))
        getattr(axes, f"set_{axis}lim")(0, 1.05 * max(float(values.max()), 1e-9))
        getattr(axes, f"{axis}axis").set_major_locator(_ticks())
    axes.set_xlabel(f"score in {names[0]} (square-root scale)")
    axes.set_ylabel(f"score in {names[1]}")
    legend_below(figure, handles)
    return figure


def _root(values: Any) -> Any:
    return np.sqrt(np.maximum(values, 0))


def _ticks() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(4)


def overlap_curve(curve: Mapping[str, Any]) -> Figure:
    """Share of the top k that two models have in common, against chance.

    Args:
        curve: an entry of ``overlap_curves``.
    """
    figure, axes = new_figure()
    k = np.arange(1, len(curve["overlap"]) + 1)
    rows = [
        ("overlap", VERMILION, "-", "in both models' top k"),
        ("expected_layer", GREEN, "--", "expected by chance, same layers"),
        ("expected_uniform", GREY, ":", "expected by chance, all heads alike"),
    ]
    handles = []
    for key, color, style, label in rows:
        (line,) = axes.plot(
            k, np.asarray(curve[key]) / k, style, color=color, linewidth=1.8, label=label
        )
        handles.append(line)
    axes.set_xlim(1, len(k))
    axes.set_xlabel("k")
    axes.set_ylabel("shared heads / k")
    axes.set_ylim(0, 1.03)
    axes.grid(color="#DDDDDD", linewidth=0.6)
    legend_below(figure, handles, columns=1)
    return figure
