"""What the ways to cut an image share: square crops, and a layout of the tokens.

The vision tower sees crops one by one; the language model reads their tokens in an order of its
own, often the rows of all crops side by side, each followed by a separator.

Axis letters: I crops, S side of a crop in pixels, V visual tokens with separators, P those
without, R rows, C columns of a map.
"""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from PIL import Image

from model_ports.images.resize import Size
from model_ports.images.token_grid import TokenGrid

# In an index of tokens: no token of a crop, but the separator that ends a row. Other negative
# numbers are other separators.
SEPARATOR = -1


@dataclasses.dataclass(frozen=True)
class Layout:
    """The visual tokens of one image in the order of the prompt.

    Attributes:
        index: int32 [V], number of the token among those of all crops (crops in order, each
            row-major), or a separator (negative).
        rect: float64 [P, 4], cell of every token that is no separator, x0, y0, x1, y1 in pixels
            of the stored image; padding around the image lies outside it.
        view: int32 [P], 0 for the whole image, 1.. for crops.
    """

    index: np.ndarray
    rect: np.ndarray
    view: np.ndarray

    @classmethod
    def even(cls, image_size: Size, columns: int, rows: int) -> "Layout":
        """One even grid of tokens over an image of this stored size, row-major; view 0."""
        count = columns * rows
        return cls(
            index=np.arange(count, dtype=np.int32),
            rect=even_cells(image_size, columns, rows),
            view=np.zeros(count, np.int32),
        )

    def grid(self, slot: np.ndarray, image: int) -> TokenGrid:
        """Records of the tokens; separators get none.

        Args:
            slot: int32 [V], sequence positions of the image's tokens and separators.
            image: index of the image in the prompt.
        """
        kept = np.asarray(slot, np.int32)[self.index >= 0]
        return TokenGrid(
            slot=kept, rect=self.rect, view=self.view, image=np.full(len(kept), image, np.int32)
        )


class Cutter(Protocol):
    """How a family turns an image into visual tokens."""

    def canvas(self, image_size: Size) -> Size:
        """(width, height) in pixels that an image of this stored size is resized to; of all
        crops side by side, where it is cut."""
        ...

    def layout(self, image_size: Size) -> Layout:
        """The tokens of an image of this stored size, in the order of the prompt."""
        ...


class Crops(Cutter, Protocol):
    """How a family cuts an image into square crops; ``layout`` numbers their tokens."""

    @property
    def tokens(self) -> int:
        """Visual tokens along one side of a crop."""
        ...

    def cut(self, image: Image.Image) -> np.ndarray:
        """Normalised crops of an RGB image, float32 [I, 3, S, S]."""
        ...


def best_canvas(image_size: Size, canvases: Sequence[Size]) -> Size:
    """The canvas on which most pixels of the image fit, then the one that wastes least.

    Among equals the first of the list is taken. Source: ``select_best_resolution`` of LLaVA-NeXT
    (also transformers, Magma and DeepSeek-VL2).
    """
    width, height = image_size
    best, most, least = canvases[0], 0, float("inf")
    for across, down in canvases:
        scale = min(across / width, down / height)
        used = min(int(width * scale) * int(height * scale), width * height)
        waste = across * down - used
        if used > most or (used == most and waste < least):
            best, most, least = (across, down), used, waste
    return best


def token_map(columns: int, rows: int, side: int, first: int = 0) -> np.ndarray:
    """Token numbers of a canvas of ``rows`` x ``columns`` crops, int32 [rows*side, columns*side].

    Args:
        side: tokens along one side of a crop.
        first: number of the first crop's first token.
    """
    numbers = np.arange(columns * rows * side * side, dtype=np.int32) + first
    grid = numbers.reshape(rows, columns, side, side).transpose(0, 2, 1, 3)
    return grid.reshape(rows * side, columns * side)


def end_rows(index: np.ndarray) -> np.ndarray:
    """Token numbers [R, C] -> [R, C + 1], every row ended by a separator."""
    return np.pad(index, ((0, 0), (0, 1)), constant_values=SEPARATOR)


def even_cells(image_size: Size, columns: int, rows: int) -> np.ndarray:
    """Cells of an even grid over an image of this stored size, float64 [R*C, 4], row-major."""
    width, height = image_size
    return rectangles(np.arange(columns + 1) * width / columns, np.arange(rows + 1) * height / rows)


def rectangles(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Cells between edges x [C+1] and y [R+1], float64 [R*C, 4], row-major."""
    return spanned((x[:-1], x[1:]), (y[:-1], y[1:]))


def spanned(x: tuple[np.ndarray, np.ndarray], y: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Cells of columns that span x (starts and ends [C]) and rows that span y ([R]), float64
    [R*C, 4], row-major."""
    left, top = np.meshgrid(x[0], y[0])
    right, bottom = np.meshgrid(x[1], y[1])
    return np.stack([left, top, right, bottom], axis=-1).reshape(-1, 4).astype(np.float64)


def split_canvas(canvas: np.ndarray, side: int) -> np.ndarray:
    """Pixels [height, width, 3] -> crops [I, 3, S, S], row-major."""
    height, width, channels = canvas.shape
    grid = canvas.reshape(height // side, side, width // side, side, channels)
    return np.ascontiguousarray(grid.transpose(0, 2, 4, 1, 3).reshape(-1, channels, side, side))
