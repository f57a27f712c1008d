"""Qwen2.5-VL's vision transformer: window attention, with full attention in a few blocks.

Axis letters: X images (of all samples), W windows, C patches of a window, S = W * C patches,
P values of a patch, N heads, H head dim, D width, M visual tokens (blocks of patches).

Reference: transformers ``Qwen2_5_VisionTransformerPretrainedModel``.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model_ports.convert.rules import Rule
from model_ports.nn.linear import Linear
from model_ports.nn.mlp import MLP, GatedMLP
from model_ports.nn.norms import RMSNorm
from model_ports.sharding import constrain
from model_ports.vision.rotary import RotaryAttention, vision_rope

NORM_EPS = 1e-6  # fixed in the reference, not part of any config


@dataclasses.dataclass(frozen=True)
class QwenVitConfig:
    """Shape of the tower; every value comes from config.json's ``vision_config``.

    Attributes:
        patch, temporal: a patch spans patch x patch pixels of ``temporal`` frames.
        merge: patches along one side of a visual token.
        window: side of an attention window in pixels.
        full_blocks: indices of the blocks that attend within the whole image.
    """

    depth: int
    dim: int
    heads: int
    mlp_dim: int
    out_dim: int
    patch: int
    temporal: int
    merge: int
    window: int
    full_blocks: tuple[int, ...]
    rope_theta: float

    @property
    def head_dim(self) -> int:
        """H."""
        return self.dim // self.heads

    @property
    def patch_dim(self) -> int:
        """P: three channels."""
        return 3 * self.temporal * self.patch**2

    @property
    def window_side(self) -> int:
        """Visual tokens along one side of a window."""
        return self.window // self.merge // self.patch


class VisionBlock(nnx.Module):
    """Pre-norm transformer block."""

    def __init__(self, cfg: QwenVitConfig, *, rngs: nnx.Rngs, dtype: jnp.dtype):
        self.norm1 = RMSNorm(cfg.dim, eps=NORM_EPS, dtype=dtype)
        self.attn = RotaryAttention(cfg.dim, cfg.heads, rngs=rngs, dtype=dtype)
        self.norm2 = RMSNorm(cfg.dim, eps=NORM_EPS, dtype=dtype)
        self.mlp = GatedMLP(cfg.dim, cfg.mlp_dim, bias=True, rngs=rngs, dtype=dtype)

    def __call__(self, x: jax.Array, cos: jax.Array, sin: jax.Array, **attention: Any) -> jax.Array:
        """x [X, S, D] -> [X, S, D]; keyword arguments as in RotaryAttention."""
        x = x + self.attn(self.norm1(x), cos, sin, **attention)
        return constrain(x + self.mlp(self.norm2(x)), "batch", None, None)


class PatchMerger(nnx.Module):
    """Joins the patches of a visual token and projects them to the language model's width."""

    def __init__(self, cfg: QwenVitConfig, *, rngs: nnx.Rngs, dtype: jnp.dtype):
        self.width = cfg.dim * cfg.merge**2
        self.norm = RMSNorm(cfg.dim, eps=NORM_EPS, dtype=dtype)
        self.mlp = MLP(self.width, self.width, cfg.out_dim, rngs=rngs, dtype=dtype)

    def __call__(self, x: jax.Array) -> jax.Array:
        """x [X, S, D] -> [X, M, out_dim]; the patches of a token are neighbours in S."""
        return self.mlp(self.norm(x).reshape(x.shape[0], -1, self.width))


class QwenVit(nnx.Module):
    """Patches in windows -> visual tokens in the language model's space."""

    def __init__(self, cfg: QwenVitConfig, *, rngs: nnx.Rngs, dtype: jnp.dtype = jnp.float32):
        self.cfg = cfg
        self.patch_embed = Linear((cfg.patch_dim,), (cfg.dim,), bias=False, rngs=rngs, dtype=dtype)

        @nnx.split_rngs(splits=cfg.depth)
        @nnx.vmap(in_axes=0, out_axes=0)
        def stack(rngs: nnx.Rngs) -> VisionBlock:
            return VisionBlock(cfg, rngs=rngs, dtype=dtype)

        self.blocks = stack(rngs)
        self.merger = PatchMerger(cfg, rngs=rngs, dtype=dtype)

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
    rules = [
        Rule(
            f"{prefix}patch_embed.proj.weight",
            "vision/patch_embed/kernel",
            "linear",
            shape=(cfg.dim, 3, cfg.temporal, cfg.patch, cfg.patch),
        ),
        Rule(f"{prefix}merger.ln_q.weight", "vision/merger/norm/scale", "vector"),
        Rule(f"{block}norm1.weight", f"{ours}norm1/scale", "vector"),
        Rule(f"{block}norm2.weight", f"{ours}norm2/scale", "vector"),
    ]

    def linear(key: str, param: str, rows: tuple[int, int] | None = None) -> None:
        rules.append(Rule(f"{key}.weight", f"{param}/kernel", "linear", rows))
        rules.append(Rule(f"{key}.bias", f"{param}/bias", "vector", rows))

    for index, part in enumerate("qkv"):
        linear(f"{block}attn.qkv", f"{ours}attn/{part}", (index, 3))
    linear(f"{block}attn.proj", f"{ours}attn/o")
    for part in ("gate", "up", "down"):
        linear(f"{block}mlp.{part}_proj", f"{ours}mlp/{part}")
    linear(f"{prefix}merger.mlp.0", "vision/merger/mlp/fc1")
    linear(f"{prefix}merger.mlp.2", "vision/merger/mlp/fc2")
    return rules
