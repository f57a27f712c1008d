"""Rotary position embeddings: 1-D, and M-RoPE whose frequencies are split over axes.

Axis letters: A position axes (1 for text, 3 for time/height/width), B batch, T sequence,
N heads, H head dim.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True)
class Rope:
    """Rotary settings of a decoder.

    Attributes:
        theta: base of the frequencies.
        sections: frequencies per position axis (M-RoPE, sums to H/2); None for 1-D.
        dynamic_factor: dynamic-NTK factor; changes theta only beyond ``max_positions``
            (transformers ``rope_type="dynamic"``).
        max_positions: trained context length, used by dynamic NTK.
    """

    theta: float
    sections: tuple[int, ...] | None = None
    dynamic_factor: float | None = None
    max_positions: int = 0

    @property
    def axes(self) -> int:
        """Number of position axes A."""
        return 1 if self.sections is None else len(self.sections)


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
        (cos, sin), float32 [B, T, H/2].
    """
    inv = jnp.asarray(inverse_frequencies(rope.theta, head_dim))
    if rope.dynamic_factor is not None:
        length = jnp.max(positions) + 1
        inv = jnp.where(length <= rope.max_positions, inv, _ntk(length, rope, head_dim))
    angles = positions.astype(jnp.float32)[..., None] * inv  # [A, B, T, H/2]
    if rope.sections is None:
        angle = angles[0]
    else:
        axis = np.repeat(np.arange(len(rope.sections)), rope.sections)
        # angle[..., i] takes the position axis that owns frequency i.
        onehot = jnp.asarray(np.eye(len(rope.sections), dtype=bool)[axis].T)  # [A, H/2]
        angle = jnp.sum(jnp.where(onehot[:, None, None], angles, 0.0), axis=0)
    return jnp.cos(angle), jnp.sin(angle)


def _ntk(length: jax.Array, rope: Rope, dim: int) -> jax.Array:
    factor = rope.dynamic_factor or 1.0
    stretch = factor * length / rope.max_positions - (factor - 1)
    theta = rope.theta * stretch.astype(jnp.float32) ** (dim / (dim - 2))
    return theta ** (-jnp.arange(0, dim, 2, dtype=jnp.float32) / dim)


def apply_rope(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotate halves: (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin).

    Args:
        x: [B, T, N, H].
        cos, sin: [B, T, H/2]; cast to the dtype of x, as the reference does.
    """
    cos = cos[:, :, None].astype(x.dtype)
    sin = sin[:, :, None].astype(x.dtype)
    x1, x2 = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([x1 * cos - x2 * sin, x2 * cos + x1 * sin], axis=-1)
