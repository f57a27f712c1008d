"""Head sets and the masks that remove them.

Axis letters: L layers, N query heads.
"""

from collections.abc import Iterable

import numpy as np

from model_ports.errors import UserError

# (layer, head), both counted from 0; layers are those of the language model.
Head = tuple[int, int]
HeadSet = frozenset[Head]


def head_mask(heads: Iterable[Head], layers: int, n_heads: int) -> np.ndarray:
    """Mask float32 [L, N]: 0 for the given heads, 1 for all others."""
    mask = np.ones((layers, n_heads), np.float32)
    for layer, head in heads:
        if not (0 <= layer < layers and 0 <= head < n_heads):
            raise UserError(
                f"head ({layer}, {head}) is not in a model of {layers} layers x {n_heads} heads "
                "(both are counted from 0)"
            )
        mask[layer, head] = 0
    return mask


def mask_heads(mask: np.ndarray) -> HeadSet:
    """Inverse of ``head_mask``."""
    return frozenset((int(layer), int(head)) for layer, head in np.argwhere(mask == 0))
