"""GLM-4V's vision transformer: AIMv2-like blocks, a position table resampled to the image, and
a convolution that joins the patches of a visual token.

Axis letters: X images (of all samples), W visual tokens, C patches of a token, S = W * C
patches, P values of a patch, D width.

Reference: transformers ``Glm4vVisionModel``.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from model_ports.convert.rules import Layout, Rule, fused
from model_ports.nn.interpolate import cubic_taps, sample_table
from model_ports.nn.linear import Linear
from model_ports.nn.mlp import GatedMLP, gelu
from model_ports.nn.norms import LayerNorm, RMSNorm
from model_ports.sharding import constrain
from model_ports.vision.rotary import RotaryBlock, RotaryVitConfig, vision_rope
from model_ports.vision.vit import run_blocks, stacked_blocks

MERGER_EPS = 1e-5  # torch's default for LayerNorm, which the reference leaves as it is


@dataclasses.dataclass(frozen=True)
class GlmVitConfig(RotaryVitConfig):
    """Shape of the tower; ``out_dim`` is also the width of the MLP in every block.

    Attributes:
        merger_dim: width of the merger's MLP.
        side: rows and columns of the position table.
    """

    merger_dim: int
    side: int
    norm_eps: float


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
        norm = partial(RMSNorm, cfg.dim, eps=cfg.norm_eps, dtype=dtype)
        self.embed_norm, self.final_norm = norm(), norm()
        self.positions = nnx.Param(table)

        def block(rngs: nnx.Rngs) -> RotaryBlock:
            mlp = partial(GatedMLP, cfg.dim, cfg.out_dim, bias=False, rngs=rngs, dtype=dtype)
            return RotaryBlock(cfg, norm=norm, mlp=mlp, bias=False, rngs=rngs, dtype=dtype)

        self.blocks = stacked_blocks(block, cfg.depth, rngs)
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
        x = run_blocks(self.blocks, x, cos=cos, sin=sin, valid=valid)
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
    rules += fused(f"{block}attn.qkv.", f"{ours}attn/", "qkv", bias=False)
    rules.append(Rule(f"{block}attn.proj.weight", f"{ours}attn/o/kernel", "linear"))
    for part in ("gate", "up", "down"):
        key, param = f"mlp.{part}_proj.weight", f"mlp/{part}/kernel"
        rules.append(Rule(f"{block}{key}", f"{ours}{param}", "linear"))
        key = f"{prefix}merger.{part}_proj.weight"
        rules.append(Rule(key, f"vision/merger/{param}", "linear"))
    return rules
