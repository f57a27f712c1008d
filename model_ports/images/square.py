"""Images that are stretched to one square, whose patches are the visual tokens.

Axis letters: S side of the square in pixels, V visual tokens.

Reference: transformers ``SiglipImageProcessorPil``.
"""

import dataclasses

import numpy as np
from PIL import Image

from model_ports.images.crops import Layout, split_canvas
from model_ports.images.resize import HALF, Size, normalise, resize


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
        stretched = resize(image, self.canvas(image.size))
        return split_canvas(normalise(stretched, HALF, HALF), self.side)

    def layout(self, image_size: Size) -> Layout:
        """The tokens of an image of this stored size, row-major."""
        return Layout.even(image_size, self.tokens, self.tokens)
