"""Parts of towers that read one grid of patches and turn queries and keys with row and column.

Axis letters: X images (of all samples), W windows, C patches of a window, S = W * C patches,
N heads, H head dim, D width, M visual tokens (blocks of patches).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model_ports.nn.attention import full_attention, masked_attention
from model_ports.nn.linear import Linear
from model_ports.nn.mlp import MLP, GatedMLP
from model_ports.nn.norms import LayerNorm, RMSNorm
from model_ports.nn.rope import apply_rope, inverse_frequencies
from model_ports.sharding import constrain


@dataclasses.dataclass(frozen=True)
class RotaryVitConfig:
    """What the towers have in common; every value comes from config.json's ``vision_config``.

    Attributes:
        out_dim: width of the visual tokens.
        patch, temporal: a patch spans patch x patch pixels of ``temporal`` frames.
        merge: patches along one side of a visual token.
    """

    depth: int
    dim: int
    heads: int
    out_dim: int
    patch: int
    temporal: int
    merge: int
    rope_theta: float

    @property
    def head_dim(self) -> int:
        """H."""
        return self.dim // self.heads

    @property
    def patch_dim(self) -> int:
        """Values of a patch, three channels."""
        return 3 * self.temporal * self.patch**2

    @property
    def window_side(self) -> int:
        """Visual tokens along one side of an attention window; 1 for a tower without windows."""
        return 1


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


class RotaryBlock(nnx.Module):
    """Pre-norm transformer block.

    Args:
        norm, mlp: make a norm over D, and an MLP from D to D.
        bias: on the projections of attention.
    """

    def __init__(
        self,
        cfg: RotaryVitConfig,
        *,
        norm: Callable[[], LayerNorm | RMSNorm],
        mlp: Callable[[], MLP | GatedMLP],
        bias: bool = True,
        rngs: nnx.Rngs,
        dtype: jnp.dtype,
    ):
        self.norm1, self.norm2 = norm(), norm()
        self.attn = RotaryAttention(cfg.dim, cfg.heads, bias=bias, rngs=rngs, dtype=dtype)
        self.mlp = mlp()

    def __call__(self, x: jax.Array, cos: jax.Array, sin: jax.Array, **attention: Any) -> jax.Array:
        """x [X, S, D] -> [X, S, D]; keyword arguments as in RotaryAttention."""
        x = x + self.attn(self.norm1(x), cos, sin, **attention)
        return constrain(x + self.mlp(self.norm2(x)), "batch", None, None)


class TokenMerger(nnx.Module):
    """Joins the patches of a visual token and projects them to the decoder's width.

    Args:
        norm: over each patch, or over the joined patches if its width is theirs.
    """

    def __init__(
        self,
        cfg: RotaryVitConfig,
        norm: LayerNorm | RMSNorm,
        *,
        rngs: nnx.Rngs,
        dtype: jnp.dtype,
    ):
        self.width = cfg.dim * cfg.merge**2
        self.norm = norm
        self.mlp = MLP(self.width, self.width, cfg.out_dim, rngs=rngs, dtype=dtype)

    def __call__(self, x: jax.Array) -> jax.Array:
        """x [..., S, D] -> [..., M, out_dim]; the patches of a token are neighbours in S."""
        joined = (*x.shape[:-2], -1, self.width)
        if self.norm.scale.shape[-1] == self.width:
            return self.mlp(self.norm(x.reshape(joined)))
        return self.mlp(self.norm(x).reshape(joined))
