"""Qwen3-VL assembled from the shared parts, and its tensor names on disk.

Axis letters: B batch, V visual tokens, D model dim, J decoder layers with DeepStack features.
"""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from model_ports.backbones.llama_like import llama_like_rules
from model_ports.convert.rules import Rule
from model_ports.decoder import Decoder
from model_ports.vision.qwen3_vit import Qwen3Vit, qwen3_vit_rules
from model_ports.vlm import VLM, Features
from model_ports.vlms.qwen3_vl.config import Qwen3VLConfig
from model_ports.vlms.qwen_common.features import prompt_tokens, tower_inputs


class Qwen3VL(VLM):
    """Vision tower with merger and DeepStack, and a Qwen3 decoder with interleaved M-RoPE."""

    def __init__(self, config: Qwen3VLConfig, rngs: nnx.Rngs, dtype: jnp.dtype):
        super().__init__(Decoder(config.decoder, rngs=rngs, dtype=dtype))
        self.vision = Qwen3Vit(config.vision, rngs=rngs, dtype=dtype)

    def features(self, images: dict[str, jax.Array]) -> jax.Array:
        """The visual tokens [B, V, D] alone; arguments as in ``visual``."""
        return self.visual(images).tokens

    def visual(self, images: dict[str, jax.Array]) -> Features:
        """Visual tokens [B, V, D] and DeepStack features [J, B, V, D] of all images of each
        prompt, in prompt order.

        Args:
            images: arrays of ``tower_inputs``, and ``index`` of ``prompt_tokens``. Zero padding
                of any axis changes nothing.
        """
        tokens, deepstack = self.vision(*tower_inputs(images))
        index = images["index"]
        return Features(
            tokens=prompt_tokens(tokens, index),
            deepstack=None
            if deepstack is None
            else jax.vmap(lambda layer: prompt_tokens(layer, index))(deepstack),
        )


def layouts(config: Qwen3VLConfig) -> Mapping[str, Sequence[Rule]]:
    """``published``: names on the hub, in transformers' modules, and as it saves them."""
    return {
        "published": [
            *qwen3_vit_rules("model.visual.", config.vision),
            *llama_like_rules(config.decoder, model="model.language_model.", head="lm_head.weight"),
        ],
    }
