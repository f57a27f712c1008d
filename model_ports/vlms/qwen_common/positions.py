"""M-RoPE positions of a prompt with images.

Reference: transformers ``Qwen2_5_VLModel.get_rope_index`` (still images).
"""

from collections.abc import Sequence

import numpy as np


def mrope_positions(
    length: int, starts: Sequence[int], grids: Sequence[tuple[int, int]]
) -> np.ndarray:
    """Time, row and column position of every token, int32 [3, T].

    Text counts up on all three axes. The visual tokens of an image that starts at position s
    have time s, row s + r and column s + c; text goes on at s + max(rows, columns).

    Args:
        length: T.
        starts: slot of the first visual token of each image, ascending.
        grids: (rows, columns) of visual tokens of each image.
    """
    parts: list[np.ndarray] = []
    slot, position = 0, 0

    def text_until(end: int) -> None:
        nonlocal slot, position
        steps = np.arange(position, position + end - slot)
        parts.append(np.stack([steps] * 3))
        position += end - slot
        slot = end

    for start, (rows, columns) in zip(starts, grids, strict=True):
        text_until(start)
        row, column = np.indices((rows, columns)).reshape(2, -1)
        parts.append(position + np.stack([np.zeros_like(row), row, column]))
        slot += rows * columns
        position += max(rows, columns)
    text_until(length)
    return np.concatenate(parts, axis=1).astype(np.int32)
