"""Phi-4-Reasoning-Vision assembled from the shared parts, and its tensor names on disk.

Axis letters: B batch, I images of a prompt, P patches of an image, C values of a patch, V visual
tokens of a prompt, D model dim.
"""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from model_ports.backbones.phi import phi_rules
from model_ports.convert.rules import Rule, pair
from model_ports.decoder import Decoder
from model_ports.nn.mlp import MLP
from model_ports.vision.siglip2_naflex import NaflexVit, naflex_rules
from model_ports.vlm import VLM
from model_ports.vlms.phi4_rv.config import Phi4RvConfig
from model_ports.vlms.qwen_common.features import prompt_tokens


class Phi4Rv(VLM):
    """NaFlex tower, two-layer projector, and a Phi-4 decoder that is causal throughout."""

    def __init__(self, config: Phi4RvConfig, rngs: nnx.Rngs, dtype: jnp.dtype):
        super().__init__(Decoder(config.decoder, rngs=rngs, dtype=dtype))
        dim = config.decoder.dim
        self.vision_blocks = config.vision_blocks
        self.vision = NaflexVit(config.vision, rngs=rngs, dtype=dtype)
        self.projector_mlp = MLP(config.vision.dim, dim, dim, rngs=rngs, dtype=dtype)

    def features(self, images: dict[str, jax.Array]) -> jax.Array:
        """Visual tokens of all images of each prompt, in prompt order, [B, V, D].

        Args:
            images: ``patches`` [B, I, P, C], ``rows`` and ``columns`` int32 [B, I], of each
                image's grid, and ``index`` int32 [B, V, 2], the image of each visual token and
                its patch there. Zero padding of any axis changes nothing.
        """
        names = ("patches", "rows", "columns")
        inputs = (images[name].reshape(-1, *images[name].shape[2:]) for name in names)
        tokens = self.vision.features(*inputs, blocks=self.vision_blocks)
        return self.projector_mlp(prompt_tokens(tokens, images["index"]))


def layouts(config: Phi4RvConfig) -> Mapping[str, Sequence[Rule]]:
    """``published``: the hub's one layout. ``saved``: the names of the same modules under
    transformers 5, whose towers have no ``vision_model``."""
    tower = "model.vision_tower.vision_tower."
    return {
        "published": _rules(config, f"{tower}vision_model."),
        "saved": _rules(config, tower),
    }


def _rules(config: Phi4RvConfig, tower: str) -> list[Rule]:
    return [
        *phi_rules(config.decoder, model="model.", head="lm_head.weight"),
        *naflex_rules(tower, config.vision),
        *pair("model.mm_projector.0", "projector_mlp/fc1", "linear"),
        *pair("model.mm_projector.2", "projector_mlp/fc2", "linear"),
    ]
