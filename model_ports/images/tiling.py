"""Dynamic tiling with a thumbnail, as the InternVL family does it.

The whole image is stretched to a canvas of square tiles whose shape is closest to its own,
and cut in row-major order; with more than one tile the whole image, stretched to one tile, is
appended last (the thumbnail).

Axis letters: I tiles (with the thumbnail), S side of a tile, V visual tokens.

Reference: ``dynamic_preprocess`` of InternVL's published code and transformers
``GotOcr2ImageProcessorPil`` with ``crop_to_patches=True``.
"""

import dataclasses
from functools import cache

import numpy as np
from PIL import Image

from model_ports.images.token_grid import TokenGrid

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclasses.dataclass(frozen=True)
class Tiling:
    """How an image is cut.

    Attributes:
        tile: side of a tile in pixels.
        tokens: visual tokens along one side of a tile.
        min_tiles, max_tiles: limits on columns * rows, the thumbnail not counted.
        thumbnail: append the whole image when there is more than one tile.
    """

    tile: int
    tokens: int
    min_tiles: int
    max_tiles: int
    thumbnail: bool

    def grid(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """(columns, rows) for a stored (width, height).

        The aspect ratio nearest to the image's wins. Among equal ratios a larger grid is taken
        as long as the image has more than half of its pixels.
        """
        width, height = image_size
        best, best_gap = (1, 1), float("inf")
        for columns, rows in _candidates(self.min_tiles, self.max_tiles):
            gap = abs(width / height - columns / rows)
            enough = width * height > 0.5 * self.tile**2 * columns * rows
            if gap < best_gap or (gap == best_gap and enough):
                best, best_gap = (columns, rows), gap
        return best

    def canvas(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """(width, height) in pixels that the image is stretched to."""
        columns, rows = self.grid(image_size)
        return columns * self.tile, rows * self.tile


@cache
def _candidates(low: int, high: int) -> tuple[tuple[int, int], ...]:
    """(columns, rows) by area; within one area by columns."""
    sizes = range(1, high + 1)
    grids = [(c, r) for c in sizes for r in sizes if low <= c * r <= high]
    return tuple(sorted(grids, key=lambda grid: grid[0] * grid[1]))


def cut(image: Image.Image, tiling: Tiling) -> np.ndarray:
    """Normalised tiles, float32 [I, 3, S, S], thumbnail last.

    Args:
        image: RGB, as stored.
    """
    side = tiling.tile
    canvas = image.resize(tiling.canvas(image.size), Image.Resampling.BICUBIC)
    columns, rows = canvas.width // side, canvas.height // side
    corners = [(c * side, r * side) for r in range(rows) for c in range(columns)]
    tiles = [canvas.crop((x, y, x + side, y + side)) for x, y in corners]
    if tiling.thumbnail and len(tiles) > 1:
        tiles.append(image.resize((side, side), Image.Resampling.BICUBIC))
    pixels = np.stack([np.asarray(tile, np.float32) for tile in tiles]) / 255
    mean, std = np.array(IMAGENET_MEAN, np.float32), np.array(IMAGENET_STD, np.float32)
    return np.ascontiguousarray(((pixels - mean) / std).transpose(0, 3, 1, 2))


def cells(
    image_size: tuple[int, int], tiling: Tiling, *, slot: np.ndarray, image: int
) -> TokenGrid:
    """Where the visual tokens of one image lie, in the order of ``cut``.

    Tiles are views 1, 2, ..; the thumbnail is view 0, and so is the only tile of an image
    that is not cut.

    Args:
        image_size: stored (width, height).
        slot: int32 [V], sequence positions of the image's tokens.
        image: index of the image in the prompt.
    """
    columns, rows = tiling.grid(image_size)
    count = columns * rows
    frames = [(i % columns, i // columns, columns, rows, i + 1) for i in range(count)]
    if count == 1:
        frames = [(0, 0, 1, 1, 0)]
    elif tiling.thumbnail:
        frames.append((0, 0, 1, 1, 0))
    n = tiling.tokens
    y, x = (axis.ravel() for axis in np.mgrid[0:n, 0:n])
    rects, views = [], []
    for column, row, across, down, view in frames:
        width, height = image_size[0] / (n * across), image_size[1] / (n * down)
        x0, y0 = (column * n + x), (row * n + y)
        rects.append(np.stack([x0 * width, y0 * height, (x0 + 1) * width, (y0 + 1) * height], 1))
        views.append(np.full(n * n, view, np.int32))
    return TokenGrid(
        slot=np.asarray(slot, np.int32),
        rect=np.concatenate(rects),
        view=np.concatenate(views),
        image=np.full(count_tokens(image_size, tiling), image, np.int32),
    )


def count_tokens(image_size: tuple[int, int], tiling: Tiling) -> int:
    """V: visual tokens of an image of this stored (width, height)."""
    columns, rows = tiling.grid(image_size)
    tiles = columns * rows
    return (tiles + int(tiling.thumbnail and tiles > 1)) * tiling.tokens**2
