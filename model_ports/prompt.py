"""One prepared sample (unpadded, on the host), and batches of them.

Axis letters: A position axes, B batch, T sequence, V visual tokens.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np

from model_ports.images.token_grid import TokenGrid
from model_ports.vlm import Batch

Side = Literal["left", "right"]


@dataclasses.dataclass(frozen=True)
class Prompt:
    """Model input of one sample, before padding.

    Attributes:
        text: the rendered prompt, with one placeholder per image.
        tokens: int32 [T].
        positions: int32 [A, T] rotary positions.
        visual_index: int32 [T], row of the image features, -1 for text.
        grid: where the visual tokens lie.
        images: arrays for the vision tower without a batch axis. Padding any axis with zeros
            must leave the features unchanged.
        prefix: number of leading tokens that attend to each other in both directions; the
            rest, and what ``extend`` adds, is causal.
    """

    text: str
    tokens: np.ndarray
    positions: np.ndarray
    visual_index: np.ndarray
    grid: TokenGrid
    images: dict[str, np.ndarray]
    prefix: int = 0

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, tokens: Sequence[int]) -> "Prompt":
        """The prompt followed by text tokens (an answer), for teacher forcing."""
        new = np.asarray(tokens, np.int32)
        start = int(self.positions.max()) + 1 if self.positions.size else 0
        steps = np.arange(start, start + len(new), dtype=np.int32)
        more = np.broadcast_to(steps, (self.positions.shape[0], len(new)))
        return dataclasses.replace(
            self,
            tokens=np.concatenate([self.tokens, new]),
            positions=np.concatenate([self.positions, more], axis=1),
            visual_index=np.concatenate([self.visual_index, np.full(len(new), -1, np.int32)]),
        )


def bucket(length: int, multiple: int) -> int:
    """``length`` rounded up to a multiple, so that few shapes are compiled."""
    return -(-length // multiple) * multiple


def offset(length: int, padded: int, side: Side) -> int:
    """Slot of a sample's first token after padding."""
    return padded - length if side == "left" else 0


def collate(
    prompts: Sequence[Prompt], *, side: Side = "left", multiple: int = 16, length: int | None = None
) -> Batch:
    """Pad prompts to one length (numpy arrays; nothing is placed on a device).

    Args:
        side: where the padding goes; results do not depend on it.
        multiple: T is rounded up to a multiple of this.
        length: fixed T instead.
    """
    total = length or bucket(max(len(p) for p in prompts), multiple)
    axes = prompts[0].positions.shape[0]
    b = len(prompts)
    tokens = np.zeros((b, total), np.int32)
    valid = np.zeros((b, total), bool)
    positions = np.zeros((axes, b, total), np.int32)
    visual = np.full((b, total), -1, np.int32)
    prefix = np.zeros((b, total), bool)
    for row, prompt in enumerate(prompts):
        first = offset(len(prompt), total, side)
        span = slice(first, first + len(prompt))
        tokens[row, span] = prompt.tokens
        valid[row, span] = True
        positions[:, row, span] = prompt.positions
        visual[row, span] = prompt.visual_index
        prefix[row, first : first + prompt.prefix] = True
    images = _collate_images([p.images for p in prompts])
    return Batch(
        tokens=tokens,  # type: ignore[arg-type]
        valid=valid,  # type: ignore[arg-type]
        positions=positions,  # type: ignore[arg-type]
        visual_index=visual,  # type: ignore[arg-type]
        images=images,  # type: ignore[arg-type]
        prefix=prefix if prefix.any() else None,  # type: ignore[arg-type]
    )


def _collate_images(images: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    names = {name for one in images for name in one}
    out: dict[str, np.ndarray] = {}
    for name in sorted(names):
        arrays = {row: one[name] for row, one in enumerate(images) if name in one}
        shapes, dtype = [a.shape for a in arrays.values()], next(iter(arrays.values())).dtype
        shape = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
        stacked = np.zeros((len(images), *shape), dtype)  # a sample without images stays zero
        for row, array in arrays.items():
            stacked[row][tuple(slice(n) for n in array.shape)] = array
        out[name] = stacked
    return out
