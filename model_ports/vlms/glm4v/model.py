"""GLM-4.6V-Flash assembled from the shared parts, and its tensor names on disk.

Axis letters: B batch, I images of a prompt, W visual tokens of an image, C patches of a token,
P values of a patch, V visual tokens of a prompt, D model dim.
"""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from model_ports.backbones.glm4 import glm4_rules
from model_ports.convert.rules import Rule
from model_ports.decoder import Decoder
from model_ports.vision.glm_vit import GlmVit, glm_vit_rules
from model_ports.vlm import VLM
from model_ports.vlms.glm4v.config import Glm4vConfig
from model_ports.vlms.qwen_common.features import prompt_tokens, tower_inputs


class Glm4v(VLM):
    """Vision tower with downsampling and merger, and a GLM-4 decoder with M-RoPE."""

    def __init__(self, config: Glm4vConfig, rngs: nnx.Rngs, dtype: jnp.dtype):
        super().__init__(Decoder(config.decoder, rngs=rngs, dtype=dtype))
        self.vision = GlmVit(config.vision, rngs=rngs, dtype=dtype)

    def features(self, images: dict[str, jax.Array]) -> jax.Array:
        """Visual tokens of all images of each prompt, in prompt order, [B, V, D].

        Args:
            images: ``patches`` [B, I, W, C, P], ``valid`` bool [B, I, W, C], ``hw`` int32
                [B, I, W, C, 2], and ``index`` int32 [B, V, 2], the image of each visual token
                and its place there. Zero padding of any axis changes nothing.
        """
        return prompt_tokens(self.vision(*tower_inputs(images)), images["index"])


def layouts(config: Glm4vConfig) -> Mapping[str, Sequence[Rule]]:
    """The one layout, of the hub and of transformers."""
    return {
        "published": [
            *glm_vit_rules("model.visual.", config.vision),
            *glm4_rules(config.decoder, model="model.language_model.", head="lm_head.weight"),
        ]
    }
