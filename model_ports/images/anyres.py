"""LLaVA-NeXT's "anyres": the whole image in one crop, then a letterboxed canvas in crops.

The tokens of letterbox padding are dropped ("spatial unpad") and every row that is left ends
with a newline.

Reference: transformers ``LlavaNextImageProcessorPil`` and
``LlavaNextModel.pack_image_features``; ``llava/mm_utils.py`` of LLaVA-NeXT where they differ.
"""

import dataclasses
import math
from typing import Literal

import numpy as np
from PIL import Image

from model_ports.images.crops import (
    Layout,
    best_canvas,
    end_rows,
    even_cells,
    rectangles,
    split_canvas,
    token_map,
)
from model_ports.images.resize import CLIP_MEAN, CLIP_STD, Size, normalise, resize

# Two readings of one pair of published numbers; see ``AnyRes.lineage``.
Lineage = Literal["hf", "original"]


@dataclasses.dataclass(frozen=True)
class AnyRes:
    """How an image is cut.

    Attributes:
        side: of a crop in pixels.
        tokens: visual tokens along one side of a crop.
        pinpoints: the canvases as the checkpoint lists them; all multiples of ``side``.
        lineage: ``hf`` reads a pinpoint as (height, width) and rounds at seven decimals before
            it drops padding rows, as transformers does; ``original`` reads (width, height) and
            cuts off, as LLaVA-NeXT's own code does. The published lists hold every pinpoint in
            both orders, so only ties fall differently (square images up to one crop), and the
            rounding matters for one size in tens of thousands.
    """

    side: int
    tokens: int
    pinpoints: tuple[tuple[int, int], ...]
    lineage: Lineage = "hf"

    def canvas(self, image_size: Size) -> Size:
        """(width, height) in pixels of the canvas for a stored (width, height)."""
        flip = self.lineage == "hf"
        return best_canvas(image_size, [p[::-1] if flip else p for p in self.pinpoints])

    def fitted(self, image_size: Size) -> Size:
        """(width, height) of the image itself on its canvas; one side is the canvas's."""
        (width, height), (across, down) = image_size, self.canvas(image_size)
        if across / width < down / height:
            return across, min(math.ceil(height * (across / width)), down)
        return min(math.ceil(width * (down / height)), across), down

    def cut(self, image: Image.Image) -> np.ndarray:
        """Normalised crops, float32 [I, 3, S, S]: the whole image stretched, then the canvas.

        Args:
            image: RGB, as stored.
        """
        across, down = self.canvas(image.size)
        width, height = self.fitted(image.size)
        left, top = (across - width) // 2, (down - height) // 2
        canvas = np.zeros((down, across, 3), np.uint8)
        canvas[top : top + height, left : left + width] = resize(image, (width, height))
        whole = resize(image, (self.side, self.side))
        return np.concatenate(
            [
                split_canvas(normalise(frame, CLIP_MEAN, CLIP_STD), self.side)
                for frame in (whole, canvas)
            ]
        )

    def layout(self, image_size: Size) -> Layout:
        """The tokens of an image of this stored (width, height).

        Those of the whole image come first, without newlines (view 0); then the rows of the
        canvas (views 1.., one a crop).
        """
        n, canvas, fitted = self.tokens, self.canvas(image_size), self.fitted(image_size)
        columns, rows = canvas[0] // self.side, canvas[1] // self.side
        first_column, first_row = self._dropped(image_size)
        kept = np.s_[first_row : rows * n - first_row, first_column : columns * n - first_column]
        crops = token_map(columns, rows, n, first=n * n)[kept]
        index = np.concatenate([token_map(1, 1, n).ravel(), end_rows(crops).ravel()])

        def edges(axis: int) -> np.ndarray:
            """Cell edges along an axis of the canvas, in pixels of the stored image."""
            dropped, cells = (first_column, first_row)[axis], (columns, rows)[axis] * n
            step = self.side / n
            on_canvas = np.arange(dropped, max(cells - dropped, dropped) + 1) * step
            before = (canvas[axis] - fitted[axis]) // 2
            return (on_canvas - before) * (image_size[axis] / fitted[axis])

        return Layout(
            index=index,
            rect=np.concatenate([even_cells(image_size, n, n), rectangles(edges(0), edges(1))]),
            view=index[index >= 0] // n**2,
        )

    def _dropped(self, image_size: Size) -> tuple[int, int]:
        """Columns of tokens dropped on the left and right each, and rows above and below."""
        (width, height), (across, down) = image_size, self.canvas(image_size)
        columns = across // self.side * self.tokens
        rows = down // self.side * self.tokens
        if width / height > columns / rows:
            return 0, (rows - self._whole(height * (columns / width))) // 2
        return (columns - self._whole(width * (rows / height))) // 2, 0

    def _whole(self, tokens: float) -> int:
        return int(round(tokens, 7)) if self.lineage == "hf" else int(tokens)
