"""SigLIP: a plain ViT with learned positions, no class token and a norm at the end.

Axis letters: B images, P patches of an image, C values of a patch, D width.

Reference: transformers ``SiglipVisionModel`` without its pooling head.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from model_ports.configs import ConfigReader
from model_ports.convert.rules import Rule, pair
from model_ports.nn.linear import Linear
from model_ports.nn.mlp import gelu_tanh
from model_ports.nn.norms import LayerNorm
from model_ports.vision.vit import (
    VitBlock,
    VitConfig,
    block_rules,
    read_vit,
    run_blocks,
    stacked_blocks,
)

NORM_EPS = 1e-6  # ``SiglipVisionConfig``'s default, as is the patch size
PATCH = 16


class Siglip(nnx.Module):
    """Tower from patches to features.

    Args:
        final_norm: norm the output of the last block. A model that reads the features of an
            earlier block has a config with fewer layers and no final norm.
    """

    def __init__(
        self,
        cfg: VitConfig,
        *,
        rngs: nnx.Rngs,
        dtype: jnp.dtype = jnp.float32,
        final_norm: bool = True,
    ):
        self.cfg = cfg
        self.patch = Linear((3 * cfg.patch**2,), (cfg.dim,), bias=True, rngs=rngs, dtype=dtype)
        table = (cfg.side**2, cfg.dim)
        self.positions = nnx.Param(0.02 * jax.random.normal(rngs.params(), table, dtype))

        def block(rngs: nnx.Rngs) -> VitBlock:
            return VitBlock(cfg, act=gelu_tanh, rngs=rngs, dtype=dtype)

        self.blocks = stacked_blocks(block, cfg.layers, rngs)
        self.norm = LayerNorm(cfg.dim, eps=cfg.norm_eps, dtype=dtype) if final_norm else None

    def __call__(
        self,
        patches: jax.Array,
        positions: jax.Array | None = None,
        valid: jax.Array | None = None,
        *,
        blocks: int | None = None,
    ) -> jax.Array:
        """Features of every patch, [B, P, D].

        Args:
            patches: [B, P, C], row-major, values in the order of the patch kernel's inputs.
            positions: position embeddings [B or 1, P, D]; None takes the table as it is.
            valid: bool [B, P], False on padding; None where there is none.
            blocks: only the first so many blocks and no final norm (transformers'
                ``hidden_states[blocks]``); None for all.
        """
        table = self.positions[...]
        x = self.patch(patches.astype(table.dtype))
        x = x + (table[None] if positions is None else positions.astype(table.dtype))
        x = run_blocks(self.blocks, x, count=blocks, valid=valid)
        return x if self.norm is None or blocks is not None else self.norm(x)


def read_siglip(reader: ConfigReader) -> VitConfig:
    """The tower of a ``siglip_vision_model`` config; the caller finishes the reader.

    transformers leaves out of the file what equals its defaults; they are the defaults here.

    Raises:
        UserError: a missing or contradicting attribute, or another activation.
    """
    reader.expect("hidden_act", "gelu_pytorch_tanh")
    reader.expect("num_channels", 3)
    size, patch = reader.take("image_size", int), reader.take("patch_size", int, PATCH)
    return read_vit(reader, image_size=size, patch=patch, eps=NORM_EPS)


def siglip_rules(
    prefix: str, cfg: VitConfig, *, final_norm: bool = True, conv: bool = True
) -> list[Rule]:
    """Key table of the tower, transformers' names.

    Args:
        prefix: of ``embeddings`` and ``encoder``, e.g. ``vision_tower.vision_model.``.
        final_norm: whether the file has the norm after the last block.
        conv: the patch embedding is a convolution (SigLIP), not a matrix (SigLIP 2).
    """
    stem = f"{prefix}embeddings."
    kernel = (cfg.dim, 3, cfg.patch, cfg.patch) if conv else None
    rules = [
        Rule(f"{stem}patch_embedding.weight", "vision/patch/kernel", "linear", shape=kernel),
        Rule(f"{stem}patch_embedding.bias", "vision/patch/bias", "vector"),
        Rule(f"{stem}position_embedding.weight", "vision/positions", "vector"),
    ]
    if final_norm:
        rules += pair(f"{prefix}post_layernorm", "vision/norm", "vector")
    rules += block_rules(f"{prefix}encoder.layers.{{l}}.", "vision/blocks/")
    # Older files carry the row numbers of the position table.
    rules.append(Rule(f"{stem}position_ids", "", "vector", use="skip"))
    return rules
