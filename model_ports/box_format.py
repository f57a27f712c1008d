"""How a model states a box, and where that box lies in the stored image. Imports nothing heavy."""

import dataclasses
from typing import Literal

# Scale of the printed numbers. "norm1023" and "norm1024" are two readings of PaliGemma's 1024
# location tokens: v / 1023 as encoded by big_vision, v / 1024 as decoded by the Hugging Face demo.
Units = Literal["resized_pixels", "norm1000", "norm999", "norm1023", "norm1024", "unit"]
# What the whole scale spans: the image, or the square that LLaVA pads it to.
Frame = Literal["image", "padded_square"]

_TOP: dict[Units, float] = {
    "norm1000": 1000,
    "norm999": 999,
    "norm1023": 1023,
    "norm1024": 1024,
    "unit": 1,
}


@dataclasses.dataclass(frozen=True)
class BoxFormat:
    """How a model states a box.

    Attributes:
        units: scale of the numbers; a property of the model, never guessed from them.
        y_first: the model prints y before x (PaliGemma).
        template: what the model prints for one box, with fields x0, y0, x1, y1 (integers
            in its units) and, where it repeats the expression, label.
        frame: what the scale spans. ``padded_square`` is the image centred in a square of its
            longer side (LLaVA issues 606 and 822).
    """

    units: Units
    template: str
    y_first: bool = False
    frame: Frame = "image"

    def scale(self, image_size: tuple[int, int], resized: tuple[int, int]) -> tuple[float, float]:
        """Stored-image pixels per unit in x and y; sizes are (width, height).

        Raises:
            ValueError: units of resized pixels, but no resized frame.
        """
        width, height = image_size
        if self.units == "resized_pixels":
            if min(resized) <= 0:
                raise ValueError(
                    f"boxes in pixels of the model's input need its size, not {resized}"
                )
            return width / resized[0], height / resized[1]
        if self.frame == "padded_square":
            width = height = max(image_size)
        top = _TOP[self.units]
        return width / top, height / top

    def pixels(
        self,
        box: tuple[float, float, float, float],
        image_size: tuple[int, int],
        resized: tuple[int, int],
    ) -> tuple[float, float, float, float]:
        """A stated box, x0, y0, x1, y1 in the model's units, in pixels of the stored image.

        Args:
            box: as ``vrh_jax.answers.parse_box`` gives it; may leave the image.
            image_size: stored (width, height).
            resized: (width, height) of the frame that the model saw; used by
                ``resized_pixels`` only.
        """
        per_x, per_y = self.scale(image_size, resized)
        left = top = 0.0
        if self.frame == "padded_square" and self.units != "resized_pixels":
            left, top = ((max(image_size) - side) / 2 for side in image_size)
        x0, y0, x1, y1 = box
        return x0 * per_x - left, y0 * per_y - top, x1 * per_x - left, y1 * per_y - top
