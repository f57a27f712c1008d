"""One look for all figures: Okabe-Ito colours, markers beside colours, legends outside the data."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

BLACK, GREY = "#000000", "#666666"
ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE = (
    "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip

# Kind of head set -> colour and marker.
SETS: dict[str, tuple[str, str]] = {
    "none": (BLACK, "s"),
    "vrh": (VERMILION, "o"),
    "random": (BLUE, "^"),
    "random_layer": (GREEN, "v"),
}

# Outcome of an answer -> (colour, hatch, label), in the order of stacked bars.
OUTCOMES: dict[str, tuple[str, str, str]] = {
    "right": (BLUE, "", "right"),
    "mislocated": (ORANGE, "", "box elsewhere (IoU below 0.5)"),
    "wrong_answer": (ORANGE, "//", "wrong answer"),
    "invalid_box": (PURPLE, "..", "box without area"),
    "parse_failure": ("#444444", "", "unreadable answer"),
    "image_error": ("#BBBBBB", "xx", "unreadable image"),
}


# Further sources of transferred heads, by position.
SOURCES = ((PURPLE, "D"), (SKY, "P"), (ORANGE, "X"), (GREY, "*"))


def set_style(heads: str, position: int = 0) -> tuple[str, str]:
    """Colour and marker of a head set; position counts the sources of transferred heads."""
    if heads.startswith("transfer:"):
        return SOURCES[position % len(SOURCES)]
    return SETS[heads]


def set_label(heads: str, k: int | None = None) -> str:
    """What a head set is called in figures and tables."""
    kind, _, other = heads.partition(":")
    labels = {
        "none": "no heads masked",
        "vrh": "highest-scoring heads",
        "random": "random heads",
        "random_layer": "random heads, same layers",
        "transfer": f"heads of {other}",
    }
    count = "" if k is None or kind == "none" else f" (k = {k})"
    return labels.get(kind, heads) + count


def new_figure(width: float = 4.2, height: float = 3.4) -> tuple[Figure, Any]:
    """A figure with one axes, drawn without a display or global state."""
    figure = Figure(figsize=(width, height), layout="constrained", dpi=130)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def legend_below(figure: Figure, handles: Sequence[Any], columns: int = 2) -> None:
    """A legend under the axes, where it cannot cover data."""
    figure.legend(
        handles=list(handles),
        loc="outside lower center",
        ncols=min(columns, len(handles)),
        frameon=False,
        fontsize=7.5,
        handlelength=1.8,
        columnspacing=1.2,
    )


def percent_axis(axes: Any, *, horizontal: bool = False) -> None:
    """0 to 100 % with light grid lines."""
    axis = axes.xaxis if horizontal else axes.yaxis
    (axes.set_xlim if horizontal else axes.set_ylim)(0, 1)
    axis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    axes.grid(axis="x" if horizontal else "y", color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)


def save(figure: Figure, path: Path) -> None:
    """Write a PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})
