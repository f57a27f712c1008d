"""Qwen3-VL's vision transformer: a position table resampled to the image, full attention with
rotary rows and columns, and features of some blocks for DeepStack.

Axis letters: X images (of all samples), W visual tokens, C patches of a token, S = W * C
patches, P values of a patch, D width, J blocks whose output is also used.

Reference: transformers ``Qwen3VLVisionModel``.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model_ports.convert.rules import Rule, fused, pair
from model_ports.nn.interpolate import linear_taps, sample_table
from model_ports.nn.linear import Linear
from model_ports.nn.mlp import MLP, gelu_tanh
from model_ports.nn.norms import LayerNorm
from model_ports.sharding import constrain
from model_ports.vision.rotary import RotaryBlock, RotaryVitConfig, TokenMerger, vision_rope
from model_ports.vision.vit import stacked_blocks

NORM_EPS = 1e-6  # fixed in the reference, not part of any config


@dataclasses.dataclass(frozen=True)
class Qwen3VitConfig(RotaryVitConfig):
    """Shape of the tower.

    Attributes:
        side: rows and columns of the position table.
        deepstack: indices, ascending, of the J blocks whose output is merged into features for
            the first J layers of the decoder.
    """

    mlp_dim: int
    side: int
    deepstack: tuple[int, ...]


class Qwen3Vit(nnx.Module):
    """Patches, those of a visual token together -> visual tokens in the decoder's space."""

    def __init__(self, cfg: Qwen3VitConfig, *, rngs: nnx.Rngs, dtype: jnp.dtype = jnp.float32):
        self.cfg = cfg
        self.patch_embed = Linear((cfg.patch_dim,), (cfg.dim,), bias=True, rngs=rngs, dtype=dtype)
        table = 0.02 * jax.random.normal(rngs.params(), (cfg.side**2, cfg.dim), dtype)
        self.positions = nnx.Param(table)

        norm = partial(LayerNorm, eps=NORM_EPS, dtype=dtype)

        def block(rngs: nnx.Rngs) -> RotaryBlock:
            size = (cfg.dim, cfg.mlp_dim, cfg.dim)
            return RotaryBlock(
                cfg,
                norm=partial(norm, cfg.dim),
                mlp=partial(MLP, *size, act=gelu_tanh, rngs=rngs, dtype=dtype),
                rngs=rngs,
                dtype=dtype,
            )

        def deepstack(rngs: nnx.Rngs) -> TokenMerger:
            joined = norm(cfg.dim * cfg.merge**2)
            return TokenMerger(cfg, joined, rngs=rngs, dtype=dtype)

        self.blocks = stacked_blocks(block, cfg.depth, rngs)
        self.merger = TokenMerger(cfg, norm(cfg.dim), rngs=rngs, dtype=dtype)
        count = len(cfg.deepstack)
        self.deepstack = stacked_blocks(deepstack, count, rngs) if count else None

    def position_embeddings(self, hw: jax.Array) -> jax.Array:
        """The table at each patch of its image's grid, whose corners are the table's corners.

        Args:
            hw: int32 [X, S, 2], row and column, zero on padding.

        Returns:
            [X, S, D], dtype of the table.
        """
        side = self.cfg.side
        grid = jnp.max(hw, axis=1, keepdims=True) + 1
        at = hw.astype(jnp.float32) * (side - 1) / jnp.maximum(grid - 1, 1).astype(jnp.float32)
        table = self.positions[...].reshape(side, side, self.cfg.dim)
        return sample_table(table, linear_taps(at[..., 0], side), linear_taps(at[..., 1], side))

    def __call__(
        self, patches: jax.Array, valid: jax.Array, hw: jax.Array
    ) -> tuple[jax.Array, jax.Array | None]:
        """Features of visual tokens.

        Args:
            patches: [X, W, C, P], the C = merge**2 patches of a token by row and column.
            valid: bool [X, W, C].
            hw: int32 [X, W, C, 2], row and column of each patch.

        Returns:
            (tokens [X, W, out_dim], DeepStack features [J, X, W, out_dim] or None), dtype of the
            weights. Tokens of padded patches hold no information.
        """
        images, tokens, size = valid.shape
        flat = hw.reshape(images, tokens * size, 2)
        x = patches.reshape(images, tokens * size, -1).astype(self.positions[...].dtype)
        x = self.patch_embed(x) + self.position_embeddings(flat)
        x = constrain(x, "batch", None, None)
        x, taken = self._run_blocks(x, flat, valid)
        if self.deepstack is None:
            return self.merger(x), None
        graphdef, stacked = nnx.split(self.deepstack)
        merge = jax.vmap(lambda params, x: nnx.merge(graphdef, params)(x))
        return self.merger(x), merge(stacked, taken)

    def _run_blocks(
        self, x: jax.Array, hw: jax.Array, valid: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """(output [X, S, D] of the last block, outputs [J, X, S, D] of the DeepStack blocks)."""
        cos, sin = vision_rope(hw, self.cfg.rope_theta, self.cfg.head_dim)
        graphdef, stacked = nnx.split(self.blocks)
        count = len(self.cfg.deepstack)
        # One slot more takes the outputs of all other blocks, so that a scan over the blocks
        # keeps J + 1 of them and not all.
        slots = np.full(self.cfg.depth, count, np.int32)
        slots[list(self.cfg.deepstack)] = np.arange(count)

        def block(carry: tuple[jax.Array, jax.Array], xs: Any) -> Any:
            (x, taken), (params, slot) = carry, xs
            x = nnx.merge(graphdef, params)(x, cos, sin, valid=valid)
            return (x, jax.lax.dynamic_update_index_in_dim(taken, x, slot, 0)), None

        taken = jnp.zeros((count + 1, *x.shape), x.dtype)
        (x, taken), _ = jax.lax.scan(block, (x, taken), (stacked, jnp.asarray(slots)))
        return x, taken[:count]


def qwen3_vit_rules(prefix: str, cfg: Qwen3VitConfig) -> list[Rule]:
    """Key table of the tower; ``prefix`` is ``model.visual.``."""
    block, ours = f"{prefix}blocks.{{l}}.", "vision/blocks/"
    kernel = (cfg.dim, 3, cfg.temporal, cfg.patch, cfg.patch)
    embed = f"{prefix}patch_embed.proj"
    rules = [
        Rule(f"{embed}.weight", "vision/patch_embed/kernel", "linear", shape=kernel),
        Rule(f"{embed}.bias", "vision/patch_embed/bias", "vector"),
        Rule(f"{prefix}pos_embed.weight", "vision/positions", "vector"),
        *fused(f"{block}attn.qkv.", f"{ours}attn/", "qkv"),
        *pair(f"{block}attn.proj", f"{ours}attn/o", "linear"),
        *pair(f"{block}norm1", f"{ours}norm1", "vector"),
        *pair(f"{block}norm2", f"{ours}norm2", "vector"),
        *_mlp(f"{block}mlp", f"{ours}mlp"),
    ]
    mergers = [(f"{prefix}merger", "vision/merger")]
    if cfg.deepstack:
        mergers.append((f"{prefix}deepstack_merger_list.{{l}}", "vision/deepstack"))
    for key, param in mergers:
        rules += [*pair(f"{key}.norm", f"{param}/norm", "vector"), *_mlp(key, f"{param}/mlp")]
    return rules


def _mlp(key: str, param: str) -> list[Rule]:
    return [
        rule
        for part in ("fc1", "fc2")
        for rule in pair(f"{key}.linear_{part}", f"{param}/{part}", "linear")
    ]
