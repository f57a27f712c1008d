"""Qwen2.5-VL's vision transformer: window attention, with full attention in a few blocks.

Axis letters: X images (of all samples), W windows, C patches of a window, S = W * C patches,
P values of a patch, D width, M visual tokens (blocks of patches).

Reference: transformers ``Qwen2_5_VisionTransformerPretrainedModel``.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model_ports.convert.rules import Rule, fused, pair
from model_ports.nn.linear import Linear
from model_ports.nn.mlp import GatedMLP
from model_ports.nn.norms import RMSNorm
from model_ports.sharding import constrain
from model_ports.vision.rotary import RotaryBlock, RotaryVitConfig, TokenMerger, vision_rope
from model_ports.vision.vit import stacked_blocks

NORM_EPS = 1e-6  # fixed in the reference, not part of any config


@dataclasses.dataclass(frozen=True)
class QwenVitConfig(RotaryVitConfig):
    """Shape of the tower.

    Attributes:
        window: side of an attention window in pixels.
        full_blocks: indices of the blocks that attend within the whole image.
    """

    mlp_dim: int
    window: int
    full_blocks: tuple[int, ...]

    @property
    def window_side(self) -> int:
        """Visual tokens along one side of a window."""
        return self.window // self.merge // self.patch


class QwenVit(nnx.Module):
    """Patches in windows -> visual tokens in the language model's space."""

    def __init__(self, cfg: QwenVitConfig, *, rngs: nnx.Rngs, dtype: jnp.dtype = jnp.float32):
        self.cfg = cfg
        self.patch_embed = Linear((cfg.patch_dim,), (cfg.dim,), bias=False, rngs=rngs, dtype=dtype)
        norm = partial(RMSNorm, cfg.dim, eps=NORM_EPS, dtype=dtype)

        def block(rngs: nnx.Rngs) -> RotaryBlock:
            mlp = partial(GatedMLP, cfg.dim, cfg.mlp_dim, bias=True, rngs=rngs, dtype=dtype)
            return RotaryBlock(cfg, norm=norm, mlp=mlp, rngs=rngs, dtype=dtype)

        self.blocks = stacked_blocks(block, cfg.depth, rngs)
        self.merger = TokenMerger(cfg, norm(), rngs=rngs, dtype=dtype)

    def __call__(self, patches: jax.Array, valid: jax.Array, hw: jax.Array) -> jax.Array:
        """Features of visual tokens, in window order.

        Args:
            patches: [X, W, C, P].
            valid: bool [X, W, C].
            hw: int32 [X, W, C, 2].

        Returns:
            [X, M, out_dim] with M = W * C / merge**2, in the dtype of the weights. Tokens of
            padded patches hold no information.
        """
        images, windows, size = valid.shape
        tokens = windows * size
        x = patches.reshape(images, tokens, -1).astype(self.patch_embed.kernel[...].dtype)
        x = constrain(self.patch_embed(x), "batch", None, None)
        cos, sin = vision_rope(
            hw.reshape(images, tokens, 2), self.cfg.rope_theta, self.cfg.head_dim
        )
        full = np.isin(np.arange(self.cfg.depth), self.cfg.full_blocks)
        graphdef, stacked = nnx.split(self.blocks)

        def block(x: jax.Array, xs: Any) -> tuple[jax.Array, None]:
            params, is_full = xs
            merged = nnx.merge(graphdef, params)
            return merged(x, cos, sin, valid=valid, full=is_full), None

        x, _ = jax.lax.scan(block, x, (stacked, jnp.asarray(full)))
        return self.merger(x)


def qwen_vit_rules(prefix: str, cfg: QwenVitConfig) -> list[Rule]:
    """Key table of the tower; ``prefix`` is ``visual.`` or ``model.visual.``."""
    block, ours = f"{prefix}blocks.{{l}}.", "vision/blocks/"
    kernel = (cfg.dim, 3, cfg.temporal, cfg.patch, cfg.patch)
    embed = f"{prefix}patch_embed.proj.weight"
    rules = [
        Rule(embed, "vision/patch_embed/kernel", "linear", shape=kernel),
        Rule(f"{prefix}merger.ln_q.weight", "vision/merger/norm/scale", "vector"),
        Rule(f"{block}norm1.weight", f"{ours}norm1/scale", "vector"),
        Rule(f"{block}norm2.weight", f"{ours}norm2/scale", "vector"),
        *fused(f"{block}attn.qkv.", f"{ours}attn/", "qkv"),
        *pair(f"{block}attn.proj", f"{ours}attn/o", "linear"),
        *pair(f"{prefix}merger.mlp.0", "vision/merger/mlp/fc1", "linear"),
        *pair(f"{prefix}merger.mlp.2", "vision/merger/mlp/fc2", "linear"),
    ]
    for part in ("gate", "up", "down"):
        rules += pair(f"{block}mlp.{part}_proj", f"{ours}mlp/{part}", "linear")
    return rules
