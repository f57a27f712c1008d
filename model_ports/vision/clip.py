"""CLIP's vision transformer: class token, learned positions, a norm before the blocks, quick GELU.

Axis letters: B crops, S side of a crop in pixels, P patches of a crop, D width.

Reference: transformers ``CLIPVisionModel``. LLaVA reads the output of the second-last block,
without the class token and without the final norm. The blocks after it and that norm are part
of the files, so they are kept (an export is complete), but not computed.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from model_ports.configs import ConfigReader
from model_ports.convert.rules import Rule, pair
from model_ports.errors import UserError
from model_ports.nn.linear import Linear
from model_ports.nn.mlp import quick_gelu
from model_ports.nn.norms import LayerNorm
from model_ports.vision.vit import VitBlock, block_rules, patchify, run_blocks, stacked_blocks


@dataclasses.dataclass(frozen=True)
class ClipConfig:
    """Shape of the tower; every value comes from a checkpoint's config.json.

    Attributes:
        image_size: side of a crop in pixels; a multiple of ``patch``.
        patch: side of a patch in pixels.
    """

    layers: int
    dim: int
    heads: int
    mlp_dim: int
    image_size: int
    patch: int
    norm_eps: float = 1e-5

    @property
    def side(self) -> int:
        """Patches along one side of a crop."""
        return self.image_size // self.patch


class ClipVit(nnx.Module):
    """Tower from pixels to patch features."""

    def __init__(self, cfg: ClipConfig, *, rngs: nnx.Rngs, dtype: jnp.dtype = jnp.float32):
        self.cfg = cfg
        self.patch = Linear((3 * cfg.patch**2,), (cfg.dim,), bias=False, rngs=rngs, dtype=dtype)
        self.cls = nnx.Param(0.02 * jax.random.normal(rngs.params(), (cfg.dim,), dtype))
        shape = (1 + cfg.side**2, cfg.dim)
        self.positions = nnx.Param(0.02 * jax.random.normal(rngs.params(), shape, dtype))
        self.pre_norm = LayerNorm(cfg.dim, eps=cfg.norm_eps, dtype=dtype)
        self.post_norm = LayerNorm(cfg.dim, eps=cfg.norm_eps, dtype=dtype)

        def block(rngs: nnx.Rngs) -> VitBlock:
            return VitBlock(
                cfg.dim,
                cfg.heads,
                cfg.mlp_dim,
                eps=cfg.norm_eps,
                act=quick_gelu,
                rngs=rngs,
                dtype=dtype,
            )

        self.blocks = stacked_blocks(block, cfg.layers, rngs)

    def __call__(self, crops: jax.Array, *, blocks: int) -> jax.Array:
        """crops [B, 3, S, S] -> patch features [B, P, D], without the class token.

        Args:
            blocks: how many blocks are applied (transformers' ``hidden_states[blocks]``).
        """
        x = self.patch(patchify(crops, self.cfg.patch).astype(self.cls[...].dtype))
        cls = jnp.broadcast_to(self.cls[...], (x.shape[0], 1, self.cfg.dim))
        x = self.pre_norm(jnp.concatenate([cls, x], axis=1) + self.positions[...])
        return run_blocks(self.blocks, x, count=blocks)[:, 1:]


def read_clip(reader: ConfigReader) -> ClipConfig:
    """ClipConfig of a ``clip_vision_model`` config (its reader is finished here).

    Activation, norm epsilon and channels may be left out: transformers saves only what differs
    from ``CLIPVisionConfig``, of which the port honours these values anyway.
    """
    reader.expect("model_type", "clip_vision_model")
    reader.expect("hidden_act", "quick_gelu")
    reader.expect("num_channels", 3)
    reader.ignore(["projection_dim", "vocab_size", "dropout"])
    cfg = ClipConfig(
        layers=reader.take("num_hidden_layers", int),
        dim=reader.take("hidden_size", int),
        heads=reader.take("num_attention_heads", int),
        mlp_dim=reader.take("intermediate_size", int),
        image_size=reader.take("image_size", int),
        patch=reader.take("patch_size", int),
        norm_eps=reader.take("layer_norm_eps", float, 1e-5),
    )
    if cfg.image_size % cfg.patch or cfg.dim % cfg.heads:
        raise UserError(
            f"{reader.where}: image_size {cfg.image_size} must be a multiple of patch_size "
            f"{cfg.patch}, and hidden_size {cfg.dim} of num_attention_heads {cfg.heads}"
        )
    reader.finish()
    return cfg


def clip_rules(prefix: str, cfg: ClipConfig) -> list[Rule]:
    """Key table of the tower.

    Args:
        prefix: of all names, up to and including the dot before ``embeddings``.
    """
    kernel = (cfg.dim, 3, cfg.patch, cfg.patch)
    stem = f"{prefix}embeddings."
    return [
        Rule(f"{stem}class_embedding", "vision/cls", "vector"),
        Rule(f"{stem}patch_embedding.weight", "vision/patch/kernel", "linear", shape=kernel),
        Rule(f"{stem}position_embedding.weight", "vision/positions", "vector"),
        # A buffer that old files hold: 0, 1, 2, ...
        Rule(f"{stem}position_ids", "", "vector", use="skip"),
        *pair(f"{prefix}pre_layrnorm", "vision/pre_norm", "vector"),  # [sic]
        *block_rules(f"{prefix}encoder.layers.{{l}}.", "vision/blocks/"),
        *pair(f"{prefix}post_layernorm", "vision/post_norm", "vector"),
    ]
