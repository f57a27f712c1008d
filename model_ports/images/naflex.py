"""Images that keep their size as far as a budget of patches allows, whose patches are the visual
tokens (NaFlex).

Axis letters: P patches, C values of a patch.

Reference: transformers ``Siglip2ImageProcessor`` (the search for a size), and the
``Siglip2ImageProcessorNoUpscale`` of microsoft/Phi-4-reasoning-vision-15B (the budget).
"""

import dataclasses
import math

import numpy as np
from PIL import Image

from model_ports.errors import UserError
from model_ports.images.crops import Layout
from model_ports.images.resize import HALF, Size, normalise, resize

# The search for a scale between these ends when it is known to this precision; the published
# code stops there too, and another precision finds other sizes.
SMALLEST, LARGEST, PRECISION = 1e-6, 100.0, 1e-5


@dataclasses.dataclass(frozen=True)
class Naflex:
    """The whole image as one grid of patches; the aspect ratio is kept up to rounding.

    Attributes:
        patch: side of a patch in pixels.
        low, high: limits of the number of patches; between them an image has as many as it
            holds unscaled.
    """

    patch: int
    low: int
    high: int

    def grid(self, image_size: Size) -> tuple[int, int]:
        """(columns, rows) of patches for a stored (width, height).

        Raises:
            UserError: an empty image.
        """
        width, height = image_size
        if min(image_size) < 1:
            raise UserError(f"an image of {width}x{height} pixels is empty")
        budget = max(self.low, min((width // self.patch) * (height // self.patch), self.high))

        def sides(scale: float) -> tuple[int, int]:
            across, down = (
                max(1, math.ceil(side * scale / self.patch)) for side in (width, height)
            )
            return across, down

        least, most = SMALLEST, LARGEST
        while most - least >= PRECISION:
            scale = (least + most) / 2
            if math.prod(sides(scale)) <= budget:
                least = scale
            else:
                most = scale
        return sides(least)

    def canvas(self, image_size: Size) -> Size:
        """(width, height) in pixels of the resized image."""
        columns, rows = self.grid(image_size)
        return columns * self.patch, rows * self.patch

    def cut(self, image: Image.Image) -> np.ndarray:
        """Patches in -1..1 of an RGB image, row-major, float32 [P, C]; the values of a patch by
        row, column and channel."""
        columns, rows = self.grid(image.size)
        bilinear = Image.Resampling.BILINEAR
        pixels = normalise(resize(image, self.canvas(image.size), bilinear), HALF, HALF)
        split = pixels.reshape(rows, self.patch, columns, self.patch, 3).transpose(0, 2, 1, 3, 4)
        return np.ascontiguousarray(split).reshape(rows * columns, -1)

    def layout(self, image_size: Size) -> Layout:
        """The tokens of an image of this stored size, row-major."""
        return Layout.even(image_size, *self.grid(image_size))
