"""Magma's crops: the whole image stretched to the best canvas of square crops, no thumbnail.

Reference: ``MagmaImageProcessor`` of microsoft/Magma (anyres strategy "crop").
"""

import dataclasses

import numpy as np
from PIL import Image

from model_ports.images.crops import (
    Layout,
    best_canvas,
    end_rows,
    even_cells,
    split_canvas,
    token_map,
)
from model_ports.images.resize import CLIP_MEAN, CLIP_STD, Size, normalise


@dataclasses.dataclass(frozen=True)
class Stretched:
    """How an image is cut.

    Attributes:
        side: of a crop in pixels.
        tokens: visual tokens along one side of a crop.
        max_crops: limit on columns * rows.
    """

    side: int
    tokens: int
    max_crops: int

    def canvas(self, image_size: Size) -> Size:
        """(width, height) in pixels of the canvas for a stored (width, height)."""
        counts = range(1, self.max_crops + 1)
        grids = [(c, r) for c in counts for r in range(1, self.max_crops // c + 1)]
        return best_canvas(image_size, [(c * self.side, r * self.side) for c, r in grids])

    def cut(self, image: Image.Image) -> np.ndarray:
        """Normalised crops, float32 [I, 3, S, S], row-major.

        The image is normalised first and then resized, bilinear and without antialiasing.

        Args:
            image: RGB, as stored.
        """
        pixels = normalise(np.asarray(image), CLIP_MEAN, CLIP_STD)
        width, height = self.canvas(image.size)
        stretched = _bilinear(_bilinear(pixels, height, axis=0), width, axis=1)
        return split_canvas(stretched, self.side)

    def layout(self, image_size: Size) -> Layout:
        """The tokens of an image of this stored (width, height): rows of the canvas, each ended
        by a separator. Views 1.. are the crops; the only crop of an image is view 0."""
        canvas, n = self.canvas(image_size), self.tokens
        columns, rows = canvas[0] // self.side, canvas[1] // self.side
        index = token_map(columns, rows, n)
        crop = index.ravel() // (n * n)
        return Layout(
            index=end_rows(index).ravel(),
            rect=even_cells(image_size, columns * n, rows * n),
            view=crop + 1 if columns * rows > 1 else crop,
        )


def _bilinear(pixels: np.ndarray, size: int, *, axis: int) -> np.ndarray:
    """Linear interpolation along one axis between pixel centres, edges repeated.

    Weights are computed in float32, as ``torch.nn.functional.interpolate`` does; its compiled
    kernels fuse multiplication and subtraction, so that a source coordinate is rounded once.
    """
    count = pixels.shape[axis]
    centre = (np.float64(np.float32(count / size)) * (np.arange(size) + 0.5) - 0.5).astype(
        np.float32
    )
    centre = np.maximum(centre, np.float32(0))
    low = np.minimum(centre.astype(np.int64), count - 1)
    high = np.minimum(low + 1, count - 1)
    shape = [1] * pixels.ndim
    shape[axis] = size
    weight = (centre - low.astype(np.float32)).reshape(shape)
    below, above = (np.take(pixels, index, axis) for index in (low, high))
    return below * (np.float32(1) - weight) + above * weight
