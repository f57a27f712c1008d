"""GLM-4V's vision transformer: AIMv2-like blocks, a position table resampled to the image, and
a convolution that joins the patches of a visual token.

Axis letters: X images (of all samples), W visual tokens, C patches of a token, S = W * C
patches, P values of a patch, D width.

Reference: transformers ``Glm4vVisionModel``.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model_ports.convert.rules import Layout, Rule
from model_ports.nn.interpolate import cubic_taps, sample_table
from model_ports.nn.linear import Linear
from model_ports.nn.mlp import GatedMLP, gelu
from model_ports.nn.norms import LayerNorm, RMSNorm
from model_ports.sharding import constrain
from model_ports.vision.rotary import RotaryAttention, vision_rope

MERGER_EPS = 1e-5  # torch's default for LayerNorm, which the reference leaves as it is


@dataclasses.dataclass(frozen=True)
class GlmVitConfig:
    """Shape of the tower; every value comes from config.json's ``vision_config``.

    Attributes:
        out_dim: width of the visual tokens, and of the MLP in every block.
        merger_dim: width of the merger's MLP.
        side: rows and columns of the position table.
        patch, temporal: a patch spans patch x patch pixels of ``temporal`` frames.
        merge: patches along one side of a visual token.
    """

    depth: int
    dim: int
    heads: int
    out_dim: int
    merger_dim: int
    side: int
    patch: int
    temporal: int
    merge: int
    norm_eps: float
    rope_theta: float

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.dim // self.heads

    @property
    def patch_dim(self) -> int:
        """P: three channels."""
        return 3 * self.temporal * self.patch**2


class GlmVitBlock(nnx.Module):
    """Pre-norm transformer block without biases."""

    def __init__(self, cfg: GlmVitConfig, *, rngs: nnx.Rngs, dtype: jnp.dtype):
        self.norm1 = RMSNorm(cfg.dim, eps=cfg.norm_eps, dtype=dtype)
        self.attn = RotaryAttention(cfg.dim, cfg.heads, bias=False, rngs=rngs, dtype=dtype)
        self.norm2 = RMSNorm(cfg.dim, eps=cfg.norm_eps, dtype=dtype)
        self.mlp = GatedMLP(cfg.dim, cfg.out_dim, bias=False, rngs=rngs, dtype=dtype)

    def __call__(self, x: jax.Array, cos: jax.Array, sin: jax.Array, valid: jax.Array) -> jax.Array:
        """x [X, S, D] -> [X, S, D]; arguments as in RotaryAttention."""
        x = x + self.attn(self.norm1(x), cos, sin, valid=valid)
        return constrain(x + self.mlp(self.norm2(x)), "batch", None, None)


class GlmMerger(nnx.Module):
    """Projects joined patches into the language model's space."""

    def __init__(self, cfg: GlmVitConfig, *, rngs: nnx.Rngs, dtype: jnp.dtype):
        out = cfg.out_dim
        self.proj = Linear((out,), (out,), bias=False, rngs=rngs, dtype=dtype)
        self.norm = LayerNorm(out, eps=MERGER_EPS, dtype=dtype)
        self.mlp = GatedMLP(out, cfg.merger_dim, bias=False, rngs=rngs, dtype=dtype)

    def __call__(self, x: jax.Array) -> jax.Array:
        """x [X, W, out_dim] -> [X, W, out_dim]."""
        return self.mlp(gelu(self.norm(self.proj(x))))


class GlmVit(nnx.Module):
    """Patches, those of a visual token together -> visual tokens in the language model's space."""

    def __init__(self, cfg: GlmVitConfig, *, rngs: nnx.Rngs, dtype: jnp.dtype = jnp.float32):
        self.cfg = cfg
        table = 0.02 * jax.random.normal(rngs.params(), (cfg.side**2, cfg.dim), dtype)
        self.patch_embed = Linear((cfg.patch_dim,), (cfg.dim,), bias=True, rngs=rngs, dtype=dtype)
        self.embed_norm = RMSNorm(cfg.dim, eps=cfg.norm_eps, dtype=dtype)
        self.positions = nnx.Param(table)

        @nnx.split_rngs(splits=cfg.depth)
        @nnx.vmap(in_axes=0, out_axes=0)
        def stack(rngs: nnx.Rngs) -> GlmVitBlock:
            return GlmVitBlock(cfg, rngs=rngs, dtype=dtype)

        self.blocks = stack(rngs)
        self.final_norm = RMSNorm(cfg.dim, eps=cfg.norm_eps, dtype=dtype)
        joined = (cfg.dim, cfg.merge**2)  # the kernel of a convolution: channel, row, column
        self.downsample = Linear(joined, (cfg.out_dim,), bias=True, rngs=rngs, dtype=dtype)
        self.merger = GlmMerger(cfg, rngs=rngs, dtype=dtype)

    def position_embeddings(self, hw: jax.Array, valid: jax.Array) -> jax.Array:
        """The table at each patch of its image's grid.

        Args:
            hw: int32 [X, S, 2], row and column.
            valid: bool [X, S].

        Returns:
            [X, S, D], dtype of the table.
        """
        side = self.cfg.side
        grid = jnp.max(jnp.where(valid[..., None], hw, 0), axis=1, keepdims=True) + 1
        at = (hw.astype(jnp.float32) + 0.5) / grid.astype(jnp.float32) * side - 0.5
        table = self.positions[...].reshape(side, side, self.cfg.dim)
        return sample_table(table, cubic_taps(at[..., 0], side), cubic_taps(at[..., 1], side))

    def __call__(self, patches: jax.Array, valid: jax.Array, hw: jax.Array) -> jax.Array:
        """Features of visual tokens.

        Args:
            patches: [X, W, C, P], the C = merge**2 patches of a token by row and column.
            valid: bool [X, W, C].
            hw: int32 [X, W, C, 2], row and column of each patch.

        Returns:
            [X, W, out_dim], dtype of the weights. Tokens of padded patches hold no information.
        """
        images, tokens, size = valid.shape
        flat = hw.reshape(images, tokens * size, 2)
        x = patches.reshape(images, tokens * size, -1).astype(self.positions[...].dtype)
        x = self.embed_norm(self.patch_embed(x))
        x = x + self.position_embeddings(flat, valid.reshape(images, tokens * size))
        x = constrain(x, "batch", None, None)
        cos, sin = vision_rope(flat, self.cfg.rope_theta, self.cfg.head_dim)
        graphdef, stacked = nnx.split(self.blocks)

        def block(x: jax.Array, params: Any) -> tuple[jax.Array, None]:
            return nnx.merge(graphdef, params)(x, cos, sin, valid), None

        x, _ = jax.lax.scan(block, x, stacked)
        x = self.final_norm(x).reshape(images, tokens, size, self.cfg.dim)
        return self.merger(self.downsample(x.swapaxes(2, 3)))


def glm_vit_rules(prefix: str, cfg: GlmVitConfig) -> list[Rule]:
    """Key table of the tower; ``prefix`` is ``model.visual.``."""
    block, ours = f"{prefix}blocks.{{l}}.", "vision/blocks/"
    kernel = (cfg.dim, 3, cfg.temporal, cfg.patch, cfg.patch)
    join = (cfg.out_dim, cfg.dim, cfg.merge, cfg.merge)
    weights: tuple[tuple[str, str, Layout, tuple[int, ...] | None], ...] = (
        ("patch_embed.proj", "patch_embed/kernel", "linear", kernel),
        ("embeddings.position_embedding", "positions", "vector", None),
        ("post_conv_layernorm", "embed_norm/scale", "vector", None),
        ("post_layernorm", "final_norm/scale", "vector", None),
        ("downsample", "downsample/kernel", "linear", join),
        ("merger.proj", "merger/proj/kernel", "linear", None),
        ("merger.post_projection_norm", "merger/norm/scale", "vector", None),
    )
    rules = [
        Rule(f"{prefix}{key}.weight", f"vision/{param}", layout, shape=shape)
        for key, param, layout, shape in weights
    ]
    rules += [
        Rule(f"{prefix}{key}.bias", f"vision/{param}/bias", "vector")
        for key, param in (
            ("patch_embed.proj", "patch_embed"),
            ("downsample", "downsample"),
            ("merger.post_projection_norm", "merger/norm"),
        )
    ]
    rules += [Rule(f"{block}norm{n}.weight", f"{ours}norm{n}/scale", "vector") for n in (1, 2)]
    for index, part in enumerate("qkv"):
        rows = (index, 3)
        rules.append(Rule(f"{block}attn.qkv.weight", f"{ours}attn/{part}/kernel", "linear", rows))
    rules.append(Rule(f"{block}attn.proj.weight", f"{ours}attn/o/kernel", "linear"))
    for part in ("gate", "up", "down"):
        key, param = f"mlp.{part}_proj.weight", f"mlp/{part}/kernel"
        rules.append(Rule(f"{block}{key}", f"{ours}{param}", "linear"))
        key = f"{prefix}merger.{part}_proj.weight"
        rules.append(Rule(key, f"vision/merger/{param}", "linear"))
    return rules
