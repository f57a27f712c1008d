"""Dynamic tiling with a thumbnail, as the InternVL family does it.

The whole image is stretched to a canvas of square tiles whose shape is closest to its own,
and cut in row-major order; with more than one tile the whole image, stretched to one tile, is
appended last (the thumbnail).

Axis letters: I tiles (with the thumbnail), S side of a tile in pixels.

Reference: ``dynamic_preprocess`` of InternVL's published code and transformers
``GotOcr2ImageProcessorPil`` with ``crop_to_patches=True``.
"""

import dataclasses
from functools import cache

import numpy as np
from PIL import Image

from model_ports.images.crops import Layout, even_cells, split_canvas, token_map
from model_ports.images.resize import IMAGENET_MEAN, IMAGENET_STD, Size, normalise, resize


@dataclasses.dataclass(frozen=True)
class Tiling:
    """How an image is cut.

    Attributes:
        side: of a tile in pixels.
        tokens: visual tokens along one side of a tile.
        min_tiles, max_tiles: limits on columns * rows, the thumbnail not counted.
        thumbnail: append the whole image when there is more than one tile.
    """

    side: int
    tokens: int
    min_tiles: int
    max_tiles: int
    thumbnail: bool

    def grid(self, image_size: Size) -> tuple[int, int]:
        """(columns, rows) for a stored (width, height).

        The aspect ratio nearest to the image's wins. Among equal ratios a larger grid is taken
        as long as the image has more than half of its pixels.
        """
        width, height = image_size
        best, best_gap = (1, 1), float("inf")
        for columns, rows in _candidates(self.min_tiles, self.max_tiles):
            gap = abs(width / height - columns / rows)
            enough = width * height > 0.5 * self.side**2 * columns * rows
            if gap < best_gap or (gap == best_gap and enough):
                best, best_gap = (columns, rows), gap
        return best

    def canvas(self, image_size: Size) -> Size:
        """(width, height) in pixels that the image is stretched to."""
        columns, rows = self.grid(image_size)
        return columns * self.side, rows * self.side

    def cut(self, image: Image.Image) -> np.ndarray:
        """Normalised tiles, float32 [I, 3, S, S], row-major, thumbnail last.

        Args:
            image: RGB, as stored.
        """
        frames = [self.canvas(image.size)]
        if self._adds_thumbnail(image.size):
            frames.append((self.side, self.side))
        return np.concatenate(
            [
                split_canvas(
                    normalise(resize(image, frame), IMAGENET_MEAN, IMAGENET_STD), self.side
                )
                for frame in frames
            ]
        )

    def layout(self, image_size: Size) -> Layout:
        """The tokens of an image of this stored (width, height): tile by tile, each row-major.

        Tiles are views 1, 2, ..; the thumbnail is view 0, and so is the only tile of an image
        that is not cut.
        """
        (columns, rows), n = self.grid(image_size), self.tokens
        tiles = columns * rows
        by_tile = np.argsort(token_map(columns, rows, n), axis=None)  # of the canvas's cells
        rects = [even_cells(image_size, columns * n, rows * n)[by_tile]]
        views = list(range(1, tiles + 1)) if tiles > 1 else [0]
        if self._adds_thumbnail(image_size):
            rects.append(even_cells(image_size, n, n))
            views.append(0)
        return Layout(
            index=np.arange(len(views) * n**2, dtype=np.int32),
            rect=np.concatenate(rects),
            view=np.repeat(np.array(views, np.int32), n**2),
        )

    def _adds_thumbnail(self, image_size: Size) -> bool:
        return self.thumbnail and self.grid(image_size) != (1, 1)


@cache
def _candidates(low: int, high: int) -> tuple[tuple[int, int], ...]:
    """(columns, rows) by area; within one area by columns."""
    sizes = range(1, high + 1)
    grids = [(c, r) for c in sizes for r in sizes if low <= c * r <= high]
    return tuple(sorted(grids, key=lambda grid: grid[0] * grid[1]))
