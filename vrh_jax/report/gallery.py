"""Samples to look at: image, true box, the answer's box before and after masking.

Entries are kept in ``OUT/gallery`` (``index.json`` and one PNG per image), so that a report can
be written again without the data.
"""

import dataclasses
import json
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from PIL import Image

from vrh_jax.data.sample import Sample
from vrh_jax.report.style import BLUE, GREEN, VERMILION

LARGEST = 480  # pixels of a kept image's longer side


@dataclasses.dataclass(frozen=True)
class Shown:
    """One answer of an example.

    Attributes:
        text: what was printed.
        box: in stored pixels, or None.
        correct: the verdict.
        failure: why not.
    """

    text: str
    box: tuple[float, float, float, float] | None
    correct: bool
    failure: str


@dataclasses.dataclass(frozen=True)
class Attention:
    """Attention of the chosen heads over token cells.

    Attributes:
        rects: [V, 4], x0, y0, x1, y1 in stored pixels.
        weights: [V].
    """

    rects: list[list[float]]
    weights: list[float]


class Recorder(Protocol):
    """Gives the attention of a model's k chosen heads on a sample, or None."""

    def __call__(self, model: str, sample: Sample, k: int) -> Attention | None: ...


@dataclasses.dataclass(frozen=True)
class Example:
    """One sample with its answers without and with the chosen heads masked.

    Attributes:
        question: the expression or question; an excerpt for a long context.
        image: file name inside the gallery folder, or "".
        image_size: stored (width, height), the frame of the boxes.
        box: the true box, or None.
        k: number of masked heads.
        attention: without a mask, where it was recorded.
    """

    model: str
    benchmark: str
    sample_id: str
    question: str
    expected: str
    image: str
    image_size: tuple[int, int]
    box: tuple[float, float, float, float] | None
    k: int
    before: Shown
    after: Shown
    attention: Attention | None = None


def save_image(image: Image.Image, folder: Path, name: str) -> str:
    """Keep a small copy of an image; returns its file name."""
    folder.mkdir(parents=True, exist_ok=True)
    small = image.convert("RGB")
    small.thumbnail((LARGEST, LARGEST))
    small.save(folder / f"{name}.png")
    return f"{name}.png"


def save_examples(folder: Path, examples: Iterable[Example]) -> None:
    """Write ``index.json``; the images are there already."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = [dataclasses.asdict(e) for e in examples]
    (folder / "index.json").write_text(json.dumps(plain, indent=1) + "\n")


def load_examples(folder: Path) -> list[Example]:
    """Kept examples; none if there is no gallery."""
    index = folder / "index.json"
    if not index.exists():
        return []
    return [_example(raw) for raw in json.loads(index.read_text())]


def _example(raw: dict[str, Any]) -> Example:
    def shown(one: dict[str, Any]) -> Shown:
        return Shown(**{**one, "box": tuple(one["box"]) if one["box"] else None})

    return Example(
        **{
            **raw,
            "image_size": tuple(raw["image_size"]),
            "box": tuple(raw["box"]) if raw["box"] else None,
            "before": shown(raw["before"]),
            "after": shown(raw["after"]),
            "attention": Attention(**raw["attention"]) if raw["attention"] else None,
        }
    )


def draw_example(example: Example, folder: Path) -> Figure:
    """Panels side by side: before, after, and the attention map if there is one."""
    with Image.open(folder / example.image) as opened:
        pixels = np.asarray(opened.convert("RGB"))
    panels = 3 if example.attention else 2
    width, height = example.image_size
    figure = Figure(
        figsize=(2.3 * panels, 2.3 * min(max(height / width, 0.4), 2.0) + 1.1),
        layout="constrained",
        dpi=130,
    )
    FigureCanvasAgg(figure)
    figure.suptitle("\n".join(textwrap.wrap(f"“{example.question}”", 24 * panels)), fontsize=9)
    axes = figure.subplots(1, panels, squeeze=False)[0]
    answers = [("no heads masked", example.before), (f"{example.k} heads masked", example.after)]
    for ax, (title, answer) in zip(axes, answers, strict=False):
        _show(ax, pixels, example.image_size)
        _box(ax, example.box, GREEN, "-")
        _box(ax, answer.box, BLUE if answer.correct else VERMILION, "--")
        ax.set_title(f"{title}:\n{_outcome(answer)}", fontsize=8)
    if example.attention:
        _show(axes[2], pixels, example.image_size)
        _heat(axes[2], example.attention, example.image_size, pixels.shape[:2])
        _box(axes[2], example.box, GREEN, "-")
        axes[2].set_title("attention of these heads,\nno heads masked", fontsize=8)
    lines: list[tuple[str, str, Any]] = [
        ("true box", GREEN, "-"),
        ("right answer", BLUE, "--"),
        ("wrong answer", VERMILION, "--"),
    ]
    handles = [Line2D([], [], color=c, linestyle=s, linewidth=2, label=t) for t, c, s in lines]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=7.5,
        handlelength=1.8, columnspacing=1.0,
    )  # fmt: skip
    return figure


def _outcome(answer: Shown) -> str:
    reasons = {
        "mislocated": "box elsewhere",
        "parse_failure": "unreadable answer",
        "invalid_box": "box without area",
        "wrong_answer": "wrong answer",
        "image_error": "unreadable image",
    }
    return "right" if answer.correct else reasons.get(answer.failure, answer.failure)


def _show(ax: Any, pixels: np.ndarray, size: tuple[int, int]) -> None:
    width, height = size
    small = max(size) < 200
    ax.imshow(
        pixels, extent=(0, width, height, 0), interpolation="nearest" if small else "antialiased"
    )
    ax.set_xticks([])
    ax.set_yticks([])


def _box(ax: Any, box: Sequence[float] | None, color: str, style: str) -> None:
    if box is None:
        return
    x0, y0, x1, y1 = box
    for edge, width in (("white", 3.2), (color, 1.8)):
        line = style if edge == color else "-"
        ax.add_patch(
            Rectangle((x0, y0), x1 - x0, y1 - y0, fill=False, edgecolor=edge, linewidth=width,
                      linestyle=line, clip_on=False)
        )  # fmt: skip


def attention_picture(
    attention: Attention, size: tuple[int, int], shape: tuple[int, int]
) -> np.ndarray:
    """Share of the largest weight at every pixel, float64 [H, W]; 0 where no token looks.

    Where views overlap (tiles and a thumbnail), the most attended token counts.

    Args:
        size: stored (width, height), the frame of the cells.
        shape: (H, W) of the picture.
    """
    (height, width), (w, h) = shape, size
    top = max(max(attention.weights, default=0.0), 1e-12)
    rects = np.reshape(attention.rects, (-1, 4))
    # Cells of a frame's padding lie outside, or have no area.
    seen = (np.maximum(rects[:, :2], 0) < np.minimum(rects[:, 2:], size)).all(1)
    scaled = rects[seen] * [width / w, height / h, width / w, height / h]
    # Cells smaller than a pixel stay visible.
    left, upper = np.minimum(np.round(scaled[:, :2]).astype(int), [width - 1, height - 1]).T
    right, lower = np.round(scaled[:, 2:]).astype(int).T
    shares = np.zeros((height, width))
    weights = np.asarray(attention.weights)[seen]
    for x0, y0, x1, y1, weight in zip(left, upper, right, lower, weights, strict=True):
        cell = shares[max(y0, 0) : max(y1, y0 + 1), max(x0, 0) : max(x1, x0 + 1)]
        np.maximum(cell, weight / top, out=cell)
    return shares


def _heat(ax: Any, attention: Attention, size: tuple[int, int], shape: tuple[int, int]) -> None:
    """Dim every place by the attention that it does not get."""
    shade = np.zeros((*shape, 4))
    shade[..., 3] = 0.8 * (1 - attention_picture(attention, size, shape))
    ax.imshow(shade, extent=(0, size[0], size[1], 0), interpolation="nearest")
