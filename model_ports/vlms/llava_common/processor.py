"""Prompts of models that read the rows of square crops, each ended by a separator.

Axis letters: I crops, S side of a crop in pixels, V visual tokens with separators.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from PIL import Image

from model_ports.images.crops import Crops, Layout
from model_ports.vlms.processor import ChatProcessor


@dataclasses.dataclass(kw_only=True)
class CropProcessor(ChatProcessor):
    """Host-side preparation for one checkpoint."""

    crops: Crops

    def pack(
        self, images: Sequence[Image.Image], layouts: Sequence[Layout]
    ) -> dict[str, np.ndarray]:
        """``crops`` [I, 3, S, S] of all images, and ``index`` int32 [V], their tokens in the
        order of the prompt, or SEPARATOR."""
        cut = [self.crops.cut(image) for image in images]
        indices, before = [], 0
        for layout, crops in zip(layouts, cut, strict=True):
            moved = layout.index + before * self.crops.tokens**2
            indices.append(np.where(layout.index < 0, layout.index, moved).astype(np.int32))
            before += len(crops)
        return {"crops": np.concatenate(cut), "index": np.concatenate(indices)}
