"""InternViT: a plain ViT with a class token, learned positions and LayerScale.

Axis letters: B tiles, S side of a tile in pixels, P patches of a tile, N heads, H head dim,
D width, L blocks.

Reference: transformers ``InternVLVisionModel``, and InternVL's published
``modeling_intern_vit.py``. There is no final norm; the class token is dropped before the
pixel shuffle. Keys, queries and values are separate parameters, so that heads can be sharded.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model_ports.nn.attention import full_attention
from model_ports.nn.linear import Linear
from model_ports.nn.mlp import MLP
from model_ports.nn.norms import LayerNorm
from model_ports.sharding import constrain


@dataclasses.dataclass(frozen=True)
class InternViTConfig:
    """Shape and numerics of the tower; every value comes from a checkpoint's config.json.

    Attributes:
        image_size: side of a tile in pixels; a multiple of ``patch``.
        patch: side of a patch in pixels.
        qkv_bias: biases on queries, keys and values.
    """

    layers: int
    dim: int
    heads: int
    mlp_dim: int
    image_size: int
    patch: int
    norm_eps: float
    qkv_bias: bool

    @property
    def side(self) -> int:
        """Patches along one side of a tile."""
        return self.image_size // self.patch


class Attention(nnx.Module):
    """Full self-attention within a tile."""

    def __init__(self, cfg: InternViTConfig, *, rngs: nnx.Rngs, dtype: jnp.dtype):
        heads = (cfg.heads, cfg.dim // cfg.heads)
        self.q = Linear((cfg.dim,), heads, bias=cfg.qkv_bias, rngs=rngs, dtype=dtype)
        self.k = Linear((cfg.dim,), heads, bias=cfg.qkv_bias, rngs=rngs, dtype=dtype)
        self.v = Linear((cfg.dim,), heads, bias=cfg.qkv_bias, rngs=rngs, dtype=dtype)
        self.o = Linear(heads, (cfg.dim,), bias=True, rngs=rngs, dtype=dtype)
        self.scale = (cfg.dim // cfg.heads) ** -0.5

    def __call__(self, x: jax.Array) -> jax.Array:
        """x [B, 1+P, D] -> [B, 1+P, D]."""
        q = constrain(self.q(x), "batch", None, "heads", None)
        k = constrain(self.k(x), "batch", None, "heads", None)
        v = constrain(self.v(x), "batch", None, "heads", None)
        everything = jnp.ones(x.shape[:2], bool)
        return self.o(full_attention(q, k, v, everything, self.scale))


class Block(nnx.Module):
    """Pre-norm block whose branches are scaled per channel (LayerScale)."""

    def __init__(self, cfg: InternViTConfig, *, rngs: nnx.Rngs, dtype: jnp.dtype):
        self.norm1 = LayerNorm(cfg.dim, eps=cfg.norm_eps, dtype=dtype)
        self.attn = Attention(cfg, rngs=rngs, dtype=dtype)
        self.scale1 = nnx.Param(jnp.full((cfg.dim,), 0.1, dtype))
        self.norm2 = LayerNorm(cfg.dim, eps=cfg.norm_eps, dtype=dtype)
        self.mlp = MLP(cfg.dim, cfg.mlp_dim, cfg.dim, rngs=rngs, dtype=dtype)
        self.scale2 = nnx.Param(jnp.full((cfg.dim,), 0.1, dtype))

    def __call__(self, x: jax.Array) -> jax.Array:
        """x [B, 1+P, D] -> [B, 1+P, D]."""
        x = x + self.scale1[...] * self.attn(self.norm1(x))
        x = x + self.scale2[...] * self.mlp(self.norm2(x))
        return constrain(x, "batch", None, None)


class InternViT(nnx.Module):
    """Tower from pixels to patch features."""

    def __init__(self, cfg: InternViTConfig, *, rngs: nnx.Rngs, dtype: jnp.dtype = jnp.float32):
        self.cfg = cfg
        pixels = 3 * cfg.patch**2
        self.patch = Linear((pixels,), (cfg.dim,), bias=True, rngs=rngs, dtype=dtype)
        self.cls = nnx.Param(jnp.zeros((cfg.dim,), dtype))
        shape = (1 + cfg.side**2, cfg.dim)
        self.positions = nnx.Param(0.02 * jax.random.normal(rngs.params(), shape, dtype))

        @nnx.split_rngs(splits=cfg.layers)
        @nnx.vmap(in_axes=0, out_axes=0)
        def stack(rngs: nnx.Rngs) -> Block:
            return Block(cfg, rngs=rngs, dtype=dtype)

        self.blocks = stack(rngs)

    def patches(self, tiles: jax.Array) -> jax.Array:
        """tiles [B, 3, S, S] -> patch vectors [B, P, 3 * patch**2], each in (c, dy, dx) order."""
        b, c, _, _ = tiles.shape
        side, patch = self.cfg.side, self.cfg.patch
        grid = tiles.reshape(b, c, side, patch, side, patch).transpose(0, 2, 4, 1, 3, 5)
        return grid.reshape(b, side * side, c * patch * patch)

    def __call__(self, tiles: jax.Array) -> jax.Array:
        """tiles [B, 3, S, S] -> patch features [B, P, D], without the class token."""
        x = self.patch(self.patches(tiles).astype(self.cls[...].dtype))
        cls = jnp.broadcast_to(self.cls[...], (x.shape[0], 1, self.cfg.dim))
        x = jnp.concatenate([cls, x], axis=1) + self.positions[...]
        graphdef, stacked = nnx.split(self.blocks)

        def block(x: jax.Array, params: Any) -> tuple[jax.Array, None]:
            with jax.named_scope("vision_layer"):
                return nnx.merge(graphdef, params)(x), None

        x, _ = jax.lax.scan(block, x, stacked)
        return x[:, 1:]


def pixel_shuffle(x: jax.Array, factor: int) -> jax.Array:
    """Space to depth, InternVL's ``ps_version`` v2.

    Token (i, j) of the output joins the channels of the patches (factor*i + dy, factor*j + dx)
    in (dy, dx, c) order. (v1 transposes rows and columns of the result.)

    Args:
        x: row-major patch features [B, side * side, D] of square tiles.
        factor: patches per output token along one side.

    Returns:
        [B, (side / factor)**2, factor**2 * D], row-major.
    """
    b, patches, dim = x.shape
    out = math.isqrt(patches) // factor
    grid = x.reshape(b, out, factor, out, factor, dim).transpose(0, 1, 3, 2, 4, 5)
    return grid.reshape(b, out * out, factor * factor * dim)
