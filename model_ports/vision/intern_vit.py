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

from model_ports.vision.vit import ClassTokenVit, VitConfig, run_blocks


@dataclasses.dataclass(frozen=True)
class InternViTConfig(VitConfig):
    """Shape and numerics of the tower.

    Attributes:
        qkv_bias: biases on queries, keys and values.
    """

    qkv_bias: bool


class InternViT(ClassTokenVit):
    """Tower from pixels to patch features."""

    def __init__(self, cfg: InternViTConfig, *, rngs: nnx.Rngs, dtype: jnp.dtype = jnp.float32):
        super().__init__(
            cfg,
            patch_bias=True,
            qkv_bias=cfg.qkv_bias,
            layer_scale=True,
            rngs=rngs,
            dtype=dtype,
        )

    def __call__(self, tiles: jax.Array) -> jax.Array:
        """tiles [B, 3, S, S] -> patch features [B, P, D], without the class token."""
        return run_blocks(self.blocks, self.embed(tiles))[:, 1:]


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
