"""CLIP's vision transformer: class token, learned positions, a norm before the blocks, quick GELU.

Axis letters: B crops, S side of a crop in pixels, P patches of a crop, D width.

Reference: transformers ``CLIPVisionModel``. LLaVA reads the output of the second-last block,
without the class token and without the final norm. The blocks after it and that norm are part
of the files, so they are kept (an export is complete), but not computed.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from model_ports.configs import ConfigReader
from model_ports.convert.rules import Rule, pair
from model_ports.nn.mlp import quick_gelu
from model_ports.nn.norms import LayerNorm
from model_ports.vision.vit import ClassTokenVit, VitConfig, block_rules, read_vit, run_blocks

NORM_EPS = 1e-5  # ``CLIPVisionConfig``'s default


class ClipVit(ClassTokenVit):
    """Tower from pixels to patch features."""

    def __init__(self, cfg: VitConfig, *, rngs: nnx.Rngs, dtype: jnp.dtype = jnp.float32):
        super().__init__(cfg, patch_bias=False, act=quick_gelu, rngs=rngs, dtype=dtype)
        self.pre_norm = LayerNorm(cfg.dim, eps=cfg.norm_eps, dtype=dtype)
        self.post_norm = LayerNorm(cfg.dim, eps=cfg.norm_eps, dtype=dtype)

    def __call__(self, crops: jax.Array, *, blocks: int) -> jax.Array:
        """crops [B, 3, S, S] -> patch features [B, P, D], without the class token.

        Args:
            blocks: how many blocks are applied (transformers' ``hidden_states[blocks]``).
        """
        x = self.pre_norm(self.embed(crops))
        return run_blocks(self.blocks, x, count=blocks)[:, 1:]


def read_clip(reader: ConfigReader) -> VitConfig:
    """Shape of a ``clip_vision_model`` config (its reader is finished here).

    Activation, norm epsilon and channels may be left out: transformers saves only what differs
    from ``CLIPVisionConfig``, of which the port honours these values anyway.
    """
    reader.expect("model_type", "clip_vision_model")
    reader.expect("hidden_act", "quick_gelu")
    reader.expect("num_channels", 3)
    reader.ignore(["projection_dim", "vocab_size", "dropout"])
    size, patch = reader.take("image_size", int), reader.take("patch_size", int)
    cfg = read_vit(reader, image_size=size, patch=patch, eps=NORM_EPS)
    reader.finish()
    return cfg


def clip_rules(prefix: str, cfg: VitConfig) -> list[Rule]:
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
