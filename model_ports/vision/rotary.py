"""Attention of vision towers with rotary rows and columns, within windows or within an image.

Axis letters: X images (of all samples), W windows, C patches of a window, S = W * C patches,
N heads, H head dim, D width.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from model_ports.nn.attention import full_attention, masked_attention
from model_ports.nn.linear import Linear
from model_ports.nn.rope import apply_rope, inverse_frequencies
from model_ports.sharding import constrain


def vision_rope(hw: jax.Array, theta: float, head_dim: int) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines of patch positions: the first half of the frequencies turn with the
    row, the second half with the column.

    Args:
        hw: int32 [..., 2], row and column.

    Returns:
        (cos, sin), float32 [..., H/2].
    """
    inv = jnp.asarray(inverse_frequencies(theta, head_dim // 2))
    angles = hw.astype(jnp.float32)[..., None] * inv  # [..., 2, H/4]
    angle = angles.reshape(*hw.shape[:-1], head_dim // 2)
    return jnp.cos(angle), jnp.sin(angle)


class RotaryAttention(nnx.Module):
    """Bidirectional attention with rotated queries and keys (in float32)."""

    def __init__(
        self, dim: int, heads: int, *, bias: bool = True, rngs: nnx.Rngs, dtype: jnp.dtype
    ):
        split = (heads, dim // heads)
        self.scale = split[1] ** -0.5
        self.q = Linear((dim,), split, bias=bias, rngs=rngs, dtype=dtype)
        self.k = Linear((dim,), split, bias=bias, rngs=rngs, dtype=dtype)
        self.v = Linear((dim,), split, bias=bias, rngs=rngs, dtype=dtype)
        self.o = Linear(split, (dim,), bias=bias, rngs=rngs, dtype=dtype)

    def __call__(
        self,
        x: jax.Array,
        cos: jax.Array,
        sin: jax.Array,
        *,
        valid: jax.Array,
        full: jax.Array | None = None,
    ) -> jax.Array:
        """x [X, S, D] -> [X, S, D].

        Args:
            cos, sin: float32 [X, S, H/2].
            valid: bool [X, W, C], with W * C = S.
            full: bool scalar, attend within the image instead of within each window; None for
                a tower without windows.
        """
        images, windows, size = valid.shape
        flat = valid.reshape(images, windows * size)

        def rotate(a: jax.Array) -> jax.Array:
            return apply_rope(a.astype(jnp.float32), cos, sin).astype(a.dtype)

        def within_image(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
            return full_attention(q, k, v, flat, self.scale)

        def within_windows(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
            shape = v.shape
            q, k, v = (a.reshape(images * windows, size, *a.shape[2:]) for a in (q, k, v))
            mask = valid.reshape(images * windows, 1, size)
            return masked_attention(q, k, v, mask, self.scale).reshape(shape)

        q, k, v = rotate(self.q(x)), rotate(self.k(x)), self.v(x)
        q, k, v = (constrain(a, "batch", None, "heads", None) for a in (q, k, v))
        if full is None:
            z = within_image(q, k, v)
        else:
            z = jax.lax.cond(full, within_image, within_windows, q, k, v)
        return self.o(constrain(z, "batch", None, "heads", None))
