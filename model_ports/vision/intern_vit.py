"""InternViT: a plain ViT with a class token, learned positions and LayerScale.

Axis letters: B tiles, S side of a tile in pixels, P patches of a tile, D width.

Reference: transformers ``InternVLVisionModel``, and InternVL's published
``modeling_intern_vit.py``. There is no final norm; the class token is dropped before the
pixel shuffle.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from flax import nnx

from model_ports.nn.linear import Linear
from model_ports.vision.vit import VitBlock, patchify, run_blocks, stacked_blocks


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


class InternViT(nnx.Module):
    """Tower from pixels to patch features."""

    def __init__(self, cfg: InternViTConfig, *, rngs: nnx.Rngs, dtype: jnp.dtype = jnp.float32):
        self.cfg = cfg
        pixels = 3 * cfg.patch**2
        self.patch = Linear((pixels,), (cfg.dim,), bias=True, rngs=rngs, dtype=dtype)
        self.cls = nnx.Param(jnp.zeros((cfg.dim,), dtype))
        shape = (1 + cfg.side**2, cfg.dim)
        self.positions = nnx.Param(0.02 * jax.random.normal(rngs.params(), shape, dtype))

        def block(rngs: nnx.Rngs) -> VitBlock:
            return VitBlock(
                cfg.dim,
                cfg.heads,
                cfg.mlp_dim,
                eps=cfg.norm_eps,
                qkv_bias=cfg.qkv_bias,
                layer_scale=True,
                rngs=rngs,
                dtype=dtype,
            )

        self.blocks = stacked_blocks(block, cfg.layers, rngs)

    def __call__(self, tiles: jax.Array) -> jax.Array:
        """tiles [B, 3, S, S] -> patch features [B, P, D], without the class token."""
        x = self.patch(patchify(tiles, self.cfg.patch).astype(self.cls[...].dtype))
        cls = jnp.broadcast_to(self.cls[...], (x.shape[0], 1, self.cfg.dim))
        x = jnp.concatenate([cls, x], axis=1) + self.positions[...]
        return run_blocks(self.blocks, x)[:, 1:]


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
