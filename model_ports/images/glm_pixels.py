"""Preprocessing of GLM-4V: as Qwen-VL's, with a pixel budget over the frames of a patch."""

import dataclasses
from pathlib import Path
from typing import ClassVar, Self

from model_ports.images.qwen_pixels import QwenPixels
from model_ports.images.resize import Size, smart_resize


@dataclasses.dataclass(frozen=True)
class GlmPixels(QwenPixels):
    """How a stored image becomes the pixels that the vision tower sees.

    Attributes:
        frames: a still image counts this often against the budget.
    """

    KINDS: ClassVar[tuple[str, ...]] = ("Glm46VImageProcessor", "Glm4vImageProcessor")

    frames: int = 2

    @classmethod
    def read(cls, folder: Path, *, patch: int, merge: int, temporal: int) -> Self:
        """Settings of a checkpoint folder, as ``QwenPixels.read``."""
        own = super().read(folder, patch=patch, merge=merge, temporal=temporal)
        return dataclasses.replace(own, frames=temporal)

    def canvas(self, image_size: Size) -> Size:
        """(width, height) of the resized frame for a stored (width, height).

        Reference: transformers ``models/glm4v/image_processing_glm4v.py``.
        """
        return smart_resize(
            image_size,
            factor=self.factor,
            min_pixels=self.min_pixels / self.frames,
            max_pixels=self.max_pixels / self.frames,
            grow=True,
        )
