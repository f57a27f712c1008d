"""Images that are stretched to one square, whose patches are the visual tokens.

Axis letters: S side of the square in pixels, V visual tokens.

Reference: transformers ``SiglipImageProcessorPil``.
"""

import numpy as np
from PIL import Image

from model_ports.images.resize import normalise, resize
from model_ports.images.token_grid import TokenGrid

HALF = (0.5, 0.5, 0.5)


def square_pixels(image: Image.Image, side: int) -> np.ndarray:
    """RGB image -> float32 [3, S, S] in -1..1; the aspect ratio is not kept."""
    pixels = normalise(resize(image, (side, side)), HALF, HALF)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def square_cells(
    image_size: tuple[int, int], tokens: int, *, slot: np.ndarray, image: int
) -> TokenGrid:
    """Where the visual tokens of one image lie, row-major.

    Args:
        image_size: stored (width, height).
        tokens: visual tokens along one side.
        slot: int32 [V], sequence positions of the image's tokens.
        image: index of the image in the prompt.
    """
    steps = np.arange(tokens + 1)
    x, y = steps * image_size[0] / tokens, steps * image_size[1] / tokens
    left, top = (axis.ravel() for axis in np.meshgrid(x[:-1], y[:-1]))
    right, bottom = (axis.ravel() for axis in np.meshgrid(x[1:], y[1:]))
    count = tokens**2
    return TokenGrid(
        slot=np.asarray(slot, np.int32),
        rect=np.stack([left, top, right, bottom], axis=1).astype(np.float64),
        view=np.zeros(count, np.int32),
        image=np.full(count, image, np.int32),
    )
