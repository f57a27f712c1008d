"""Images that are stretched to one square, whose patches are the visual tokens.

Axis letters: S side of the square in pixels, V visual tokens.

Reference: transformers ``SiglipImageProcessorPil``.
"""

import dataclasses

import numpy as np
from PIL import Image

from model_ports.images.crops import Layout, Size, rectangles
from model_ports.images.resize import normalise, resize

HALF = (0.5, 0.5, 0.5)


@dataclasses.dataclass(frozen=True)
class Square:
    """A single crop that shows the whole image; the aspect ratio is not kept.

    Attributes:
        side: of the square in pixels.
        tokens: visual tokens along one side.
    """

    side: int
    tokens: int

    def canvas(self, image_size: Size) -> Size:
        """(width, height) in pixels, whatever the image."""
        return self.side, self.side

    def cut(self, image: Image.Image) -> np.ndarray:
        """Pixels in -1..1 of an RGB image, float32 [1, 3, S, S]."""
        pixels = normalise(resize(image, (self.side, self.side)), HALF, HALF)
        return np.ascontiguousarray(pixels.transpose(2, 0, 1))[None]

    def layout(self, image_size: Size) -> Layout:
        """The tokens of an image of this stored size, row-major."""
        steps = np.arange(self.tokens + 1)
        x, y = (steps * length / self.tokens for length in image_size)
        count = self.tokens**2
        return Layout(
            index=np.arange(count, dtype=np.int32),
            rect=rectangles(x, y),
            view=np.zeros(count, np.int32),
        )
