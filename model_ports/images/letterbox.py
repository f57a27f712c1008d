"""DeepSeek-VL2's views: the whole image letterboxed into one crop, then into a canvas of crops.

The aspect ratio is kept and the rest is grey. The tokens of padding stay; their cells lie outside
the image. A crop of 384 pixels has 27 patches of 14, which the projector joins two by two: the
last six pixels of a crop are never seen, and its last row and column of tokens are half as wide.

Reference: ``DeepseekVLV2Processor`` of deepseek-ai/DeepSeek-VL2 and Pillow's ``ImageOps.pad``.
"""

import dataclasses
import math

import numpy as np
from PIL import Image, ImageOps

from model_ports.errors import UserError
from model_ports.images.crops import (
    Layout,
    best_canvas,
    end_rows,
    spanned,
    split_canvas,
    token_map,
)
from model_ports.images.resize import HALF, Size, normalise

# Between the tokens of the whole image and those of the canvas.
VIEW_SEPARATOR = -2
GREY = (127, 127, 127)


@dataclasses.dataclass(frozen=True)
class Letterbox:
    """How an image is cut.

    Attributes:
        side: of a crop in pixels.
        patch: side of a patch in pixels.
        joined: patches along one side of a token.
        canvases: (width, height) as the checkpoint lists them; all multiples of ``side``.
        cropping: choose the canvas by the image; otherwise it is one crop.
    """

    side: int
    patch: int
    joined: int
    canvases: tuple[Size, ...]
    cropping: bool = True

    @property
    def tokens(self) -> int:
        """Visual tokens along one side of a crop."""
        return math.ceil(self.side // self.patch / self.joined)

    def canvas(self, image_size: Size) -> Size:
        """(width, height) in pixels of the canvas for a stored (width, height)."""
        return best_canvas(image_size, self.canvases) if self.cropping else (self.side, self.side)

    def cut(self, image: Image.Image) -> np.ndarray:
        """Normalised crops, float32 [I, 3, S, S]: the whole image, then the canvas, row-major.

        Args:
            image: RGB, as stored.
        """
        crops = []
        for frame in ((self.side, self.side), self.canvas(image.size)):
            padded = ImageOps.pad(image, frame, Image.Resampling.BICUBIC, color=GREY)
            crops.append(split_canvas(normalise(np.asarray(padded), HALF, HALF), self.side))
        return np.concatenate(crops)

    def layout(self, image_size: Size) -> Layout:
        """The tokens of an image of this stored (width, height).

        Rows of the whole image (view 0), a separator of views, rows of the canvas (views 1..,
        one a crop); every row is ended by a separator.

        Raises:
            UserError: an image so long that nothing of its short side is left.
        """
        n, canvas = self.tokens, self.canvas(image_size)
        whole = token_map(1, 1, n)
        crops = token_map(canvas[0] // self.side, canvas[1] // self.side, n, first=n * n)
        between = np.array([VIEW_SEPARATOR], np.int32)
        index = np.concatenate([end_rows(whole).ravel(), between, end_rows(crops).ravel()])
        return Layout(
            index=index,
            rect=np.concatenate(
                [self._cells(image_size, frame) for frame in ((self.side, self.side), canvas)]
            ),
            view=index[index >= 0] // n**2,
        )

    def _cells(self, image_size: Size, frame: Size) -> np.ndarray:
        """Cells of a frame's tokens in pixels of the stored image, row-major."""
        seen = self.side // self.patch * self.patch
        step = self.patch * self.joined
        fitted, offset = _padded(image_size, frame)
        edges = []
        for axis in (0, 1):
            crop, cell = np.divmod(np.arange(frame[axis] // self.side * self.tokens), self.tokens)
            start = crop * self.side + cell * step
            stop = crop * self.side + np.minimum((cell + 1) * step, seen)
            scale = image_size[axis] / fitted[axis]
            edges.append(((start - offset[axis]) * scale, (stop - offset[axis]) * scale))
        return spanned(edges[0], edges[1])


def _padded(image_size: Size, frame: Size) -> tuple[Size, Size]:
    """((width, height) of the image in its frame, (left, top) of it), as ``ImageOps.pad``.

    Raises:
        UserError: an image so long that nothing of its short side is left.
    """
    (width, height), (across, down) = image_size, frame
    if width / height > across / down:
        down = round(height / width * across)
    elif width / height < across / down:
        across = round(width / height * down)
    if min(across, down) < 1:
        raise UserError(
            f"an image of {width}x{height} pixels is too long for this model's preprocessing, "
            f"which would shrink it to {across}x{down}; crop or pad the image"
        )
    left, top = round((frame[0] - across) * 0.5), round((frame[1] - down) * 0.5)
    return (across, down), (left, 0 if left else top)
