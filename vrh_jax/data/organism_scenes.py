"""Synthetic scenes of the organisms: coloured shapes on a noisy background.

A scene is drawn from a seed; train, detection and evaluation scenes use disjoint seed streams.
"""

import dataclasses
from typing import Literal

import numpy as np
from PIL import Image, ImageDraw

Split = Literal["train", "detection", "evaluation"]
SPLITS: tuple[Split, ...] = ("train", "detection", "evaluation")

SIDE = 48  # pixels
CELL = 8  # pixels per visual token
GRID = 2  # boxes lie on multiples of this
SIZES = ("small", "large")
COLORS = ("red", "green", "blue", "yellow", "purple", "cyan")
SHAPES = ("circle", "square", "triangle", "cross")
_EXTENT = {0: (8, 10), 1: (14, 16)}
_GAP = 2
_RGB = np.array(
    [(220, 40, 40), (40, 180, 60), (50, 80, 225), (235, 215, 50), (160, 50, 190), (60, 210, 215)]
)


@dataclasses.dataclass(frozen=True)
class Thing:
    """One object: attribute indices and its half-open pixel box."""

    size: int
    color: int
    shape: int
    box: tuple[int, int, int, int]

    @property
    def center(self) -> tuple[float, float]:
        """Centre of the box in pixels."""
        x0, y0, x1, y1 = self.box
        return (x0 + x1) / 2, (y0 + y1) / 2


@dataclasses.dataclass(frozen=True)
class Scene:
    """Objects without overlap, and the seed of the drawing."""

    things: tuple[Thing, ...]
    seed: tuple[int, ...]

    def render(self) -> Image.Image:
        """RGB image, SIDE x SIDE, the same for the same scene."""
        rng = np.random.default_rng([*self.seed, 1])
        base = rng.uniform(70, 150) + rng.uniform(-20, 20, 3)
        slope = rng.uniform(-20, 20, (2, 3))
        axis = np.linspace(-1, 1, SIDE)
        canvas = base + axis[:, None, None] * slope[0] + axis[None, :, None] * slope[1]
        noisy = np.clip(canvas + rng.normal(0, 12, (SIDE, SIDE, 3)), 0, 255)
        image = Image.fromarray(noisy.astype(np.uint8), "RGB")
        pen = ImageDraw.Draw(image)
        for thing in self.things:
            color = np.clip(_RGB[thing.color] + rng.integers(-18, 19, 3), 0, 255)
            _draw(pen, thing, tuple(int(c) for c in color))
        grain = rng.normal(0, 5, (SIDE, SIDE, 3))
        return Image.fromarray(
            np.clip(np.asarray(image, np.float64) + grain, 0, 255).astype(np.uint8), "RGB"
        )

    def cells(self) -> np.ndarray:
        """int64 [36]: index of the object that covers most of each cell, -1 for background."""
        starts = np.arange(0, SIDE, CELL)
        areas = np.zeros((len(self.things), len(starts), len(starts)))
        for i, thing in enumerate(self.things):
            x0, y0, x1, y1 = thing.box
            dx = np.clip(np.minimum(starts + CELL, x1) - np.maximum(starts, x0), 0, None)
            dy = np.clip(np.minimum(starts + CELL, y1) - np.maximum(starts, y0), 0, None)
            areas[i] = dy[:, None] * dx[None, :]
        owner = np.where(areas.max(0) > 0, areas.argmax(0), -1)
        return owner.reshape(-1)


def _draw(pen: ImageDraw.ImageDraw, thing: Thing, color: tuple[int, ...]) -> None:
    x0, y0, x1, y1 = thing.box
    right, bottom = x1 - 1, y1 - 1
    name = SHAPES[thing.shape]
    if name == "circle":
        pen.ellipse((x0, y0, right, bottom), fill=color)
    elif name == "square":
        pen.rectangle((x0, y0, right, bottom), fill=color)
    elif name == "triangle":
        pen.polygon([((x0 + right) / 2, y0), (right, bottom), (x0, bottom)], fill=color)
    else:
        w, h = (x1 - x0) // 3, (y1 - y0) // 3
        pen.rectangle((x0 + w, y0, right - w, bottom), fill=color)
        pen.rectangle((x0, y0 + h, right, bottom - h), fill=color)


def draw_scene(seed: int, split: Split, index: int, counts: tuple[int, int] = (3, 6)) -> Scene:
    """Scene ``index`` of a split, with ``counts[0]`` to ``counts[1]`` objects.

    Every object owns at least one cell, and no two share size, colour and shape.
    """
    key = (seed, SPLITS.index(split), index)
    rng = np.random.default_rng(key)
    while True:
        scene = _try(rng, int(rng.integers(counts[0], counts[1] + 1)), key)
        if scene is not None:
            return scene


def _try(rng: np.random.Generator, count: int, key: tuple[int, ...]) -> Scene | None:
    things: list[Thing] = []
    seen: set[tuple[int, int, int]] = set()
    for _ in range(60):
        if len(things) == count:
            break
        draw = rng.random(7)
        size, color, shape = int(draw[0] * 2), int(draw[1] * 6), int(draw[2] * 4)
        w, h = _EXTENT[size][int(draw[3] * 2)], _EXTENT[size][int(draw[4] * 2)]
        x0 = GRID * int(draw[5] * ((SIDE - w) // GRID + 1))
        y0 = GRID * int(draw[6] * ((SIDE - h) // GRID + 1))
        clear = all(
            x0 + w + _GAP <= t.box[0]
            or t.box[2] + _GAP <= x0
            or y0 + h + _GAP <= t.box[1]
            or t.box[3] + _GAP <= y0
            for t in things
        )
        if clear and (size, color, shape) not in seen:
            seen.add((size, color, shape))
            things.append(Thing(size, color, shape, (x0, y0, x0 + w, y0 + h)))
    scene = Scene(tuple(things), key)
    if len(things) < count or len(set(scene.cells().tolist()) - {-1}) < count:
        return None
    return scene
