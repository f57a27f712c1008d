"""Rotary position embeddings: 1-D, and M-RoPE whose frequencies are split over axes.

Axis letters: A position axes (1 for text, 3 for time/height/width), B batch, T sequence,
N heads, H head dim, R rotated dims (R <= H).
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

Pairs = Literal["halves", "adjacent"]


@dataclasses.dataclass(frozen=True)
class Rope:
    """Rotary settings of a decoder.

    Attributes:
        theta: base of the frequencies.
        sections: frequencies per position axis (M-RoPE; sums to half the rotated dims unless
            interleaved); None for 1-D.
        interleaved: frequency i belongs to axis i mod 3 (as far as that axis's section goes,
            then to axis 0) instead of one contiguous run per axis.
        pairs: which two dims are rotated together: i and i + R/2, or 2i and 2i + 1.
        dim: number R of leading head dims that are rotated; None for all H.
        dynamic_factor: dynamic-NTK factor; changes theta only beyond ``max_positions``, by the
            length of each sample for itself (transformers ``rope_type="dynamic"`` on one).
        max_positions: trained context length, used by dynamic NTK.
    """

    theta: float
    sections: tuple[int, ...] | None = None
    interleaved: bool = False
    pairs: Pairs = "halves"
    dim: int | None = None
    dynamic_factor: float | None = None
    max_positions: int = 0

    @property
    def axes(self) -> int:
        """Number of position axes A."""
        return 1 if self.sections is None else len(self.sections)

    def axis_of_frequency(self, count: int) -> np.ndarray:
        """Position axis that each of ``count`` = R/2 frequencies follows; needs ``sections``."""
        sections = self.sections or ()
        if not self.interleaved:
            return np.repeat(np.arange(len(sections)), sections)
        index = np.arange(count)
        turn = index % len(sections)
        return np.where(index < len(sections) * np.array(sections)[turn], turn, 0)


def inverse_frequencies(theta: float, dim: int) -> np.ndarray:
    """theta ** (-2i / dim) for i < dim / 2, float32 [dim/2]."""
    return (1.0 / theta ** (np.arange(0, dim, 2, dtype=np.float32) / dim)).astype(np.float32)


def rope_tables(positions: jax.Array, rope: Rope, head_dim: int) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines for a decoder.

    Args:
        positions: int32 [A, B, T].
        rope: settings.
        head_dim: H.

    Returns:
        (cos, sin), float32 [B, T, R/2] for R rotated dims.
    """
    head_dim = rope.dim or head_dim
    inv = jnp.asarray(inverse_frequencies(rope.theta, head_dim))
    if rope.dynamic_factor is not None:
        length = jnp.max(positions, axis=(0, 2))[:, None, None] + 1  # a sample's own
        inv = jnp.where(length <= rope.max_positions, inv, _ntk(length, rope, head_dim))
    angles = positions.astype(jnp.float32)[..., None] * inv  # [A, B, T, R/2]
    if rope.sections is None:
        angle = angles[0]
    else:
        # angle[..., i] takes the position axis that owns frequency i.
        axis = rope.axis_of_frequency(head_dim // 2)
        onehot = jnp.asarray(np.eye(len(rope.sections), dtype=bool)[axis].T)  # [A, R/2]
        angle = jnp.sum(jnp.where(onehot[:, None, None], angles, 0.0), axis=0)
    return jnp.cos(angle), jnp.sin(angle)


def _ntk(length: jax.Array, rope: Rope, dim: int) -> jax.Array:
    """Frequencies [B, 1, R/2] for the samples' lengths [B, 1, 1]."""
    factor = rope.dynamic_factor or 1.0
    stretch = factor * length / rope.max_positions - (factor - 1)
    theta = rope.theta * stretch.astype(jnp.float32) ** (dim / (dim - 2))
    return theta ** (-jnp.arange(0, dim, 2, dtype=jnp.float32) / dim)


def apply_rope(x: jax.Array, cos: jax.Array, sin: jax.Array, pairs: Pairs = "halves") -> jax.Array:
    """Rotate pairs of dims: (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin).

    Args:
        x: [B, T, N, H]; dims from R on are left as they are.
        cos, sin: [B, T, R/2]; cast to the dtype of x, as the reference does.
        pairs: as in Rope.
    """
    cos = cos[:, :, None].astype(x.dtype)
    sin = sin[:, :, None].astype(x.dtype)
    rotated, rest = jnp.split(x, [2 * cos.shape[-1]], axis=-1)
    if pairs == "halves":
        x1, x2 = jnp.split(rotated, 2, axis=-1)
    else:
        x1, x2 = rotated[..., 0::2], rotated[..., 1::2]
    y1, y2 = x1 * cos - x2 * sin, x2 * cos + x1 * sin
    if pairs == "halves":
        return jnp.concatenate([y1, y2, rest], axis=-1)
    return jnp.concatenate([jnp.stack([y1, y2], axis=-1).reshape(rotated.shape), rest], axis=-1)
