"""Where each visual token lies: in the sequence and in the stored image.

Axis letters: V visual tokens.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np

CoverRule = Literal["any", "center", "coverage"]


@dataclasses.dataclass(frozen=True)
class TokenGrid:
    """One record per visual token, in feature order. Newlines and padding have no record.

    Attributes:
        slot: int32 [V], position in the language model's sequence, counted without padding.
        rect: float64 [V, 4], x0, y0, x1, y1 in pixels of the stored image, half-open.
        view: int32 [V], 0 for the whole image or thumbnail, 1.. for tiles.
        image: int32 [V], index of the image in the prompt.
    """

    slot: np.ndarray
    rect: np.ndarray
    view: np.ndarray
    image: np.ndarray

    def __len__(self) -> int:
        return len(self.slot)

    @classmethod
    def empty(cls) -> "TokenGrid":
        """The grid of a prompt without images."""
        none = np.zeros((0,), np.int32)
        return cls(slot=none, rect=np.zeros((0, 4)), view=none, image=none)

    @classmethod
    def concatenate(cls, grids: Sequence["TokenGrid"]) -> "TokenGrid":
        """Grids of several images of one prompt, in order."""
        if not grids:
            return cls.empty()
        fields = [f.name for f in dataclasses.fields(cls)]
        return cls(**{f: np.concatenate([getattr(g, f) for g in grids]) for f in fields})

    def cover(
        self,
        box: Sequence[float],
        *,
        rule: CoverRule = "any",
        image: int = 0,
        views: Sequence[int] | None = None,
    ) -> np.ndarray:
        """Weight of each token for a box, float32 [V].

        Args:
            box: x0, y0, x1, y1 in stored pixels, half-open.
            rule: ``any`` overlap of positive area (the paper's rule), ``center`` of the cell
                inside the box, or ``coverage``, the covered share of the cell.
            image: index of the image the box refers to.
            views: restrict to these views; None takes all of them.
        """
        x0, y0, x1, y1 = box
        left, top, right, bottom = self.rect.T
        width = np.minimum(right, x1) - np.maximum(left, x0)
        height = np.minimum(bottom, y1) - np.maximum(top, y0)
        overlap = np.clip(width, 0, None) * np.clip(height, 0, None)
        if rule == "any":
            weight = (overlap > 0).astype(np.float32)
        elif rule == "center":
            cx, cy = (left + right) / 2, (top + bottom) / 2
            weight = ((x0 <= cx) & (cx < x1) & (y0 <= cy) & (cy < y1)).astype(np.float32)
        elif rule == "coverage":
            area = (right - left) * (bottom - top)
            weight = (overlap / np.maximum(area, 1e-12)).astype(np.float32)
        else:
            raise ValueError(f"unknown cover rule {rule!r}; use any, center or coverage")
        chosen = self.image == image
        if views is not None:
            chosen &= np.isin(self.view, views)
        return np.where(chosen, weight, 0).astype(np.float32)
