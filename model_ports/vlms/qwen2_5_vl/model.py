"""Qwen2.5-VL assembled from the shared parts, and its tensor names on disk.

Axis letters: B batch, I images of a prompt, W windows, C patches of a window, P values of a
patch, V visual tokens, D model dim.
"""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from model_ports.backbones.llama_like import llama_like_rules
from model_ports.convert.rules import Rule
from model_ports.decoder import Decoder
from model_ports.vision.qwen_vit import QwenVit, qwen_vit_rules
from model_ports.vlm import VLM
from model_ports.vlms.qwen2_5_vl.config import Qwen25VLConfig
from model_ports.vlms.qwen_common.features import prompt_tokens, tower_inputs


class Qwen25VL(VLM):
    """Windowed vision tower with merger, and a Qwen2.5 decoder with M-RoPE."""

    def __init__(self, config: Qwen25VLConfig, rngs: nnx.Rngs, dtype: jnp.dtype):
        super().__init__(Decoder(config.decoder, rngs=rngs, dtype=dtype))
        self.vision = QwenVit(config.vision, rngs=rngs, dtype=dtype)

    def features(self, images: dict[str, jax.Array]) -> jax.Array:
        """Visual tokens of all images of each prompt, in prompt order, [B, V, D].

        Args:
            images: ``patches`` [B, I, W, C, P], ``valid`` bool [B, I, W, C], ``hw`` int32
                [B, I, W, C, 2], and ``index`` int32 [B, V, 2], the image of each visual token
                and its place in window order. Zero padding of any axis changes nothing.
        """
        tokens = self.vision(*tower_inputs(images))
        return prompt_tokens(tokens, images["index"])


def layouts(config: Qwen25VLConfig) -> Mapping[str, Sequence[Rule]]:
    """``published``: names on the hub and as transformers saves them; ``in_memory``: names of
    transformers' modules since 4.52."""
    return {
        "published": [
            *qwen_vit_rules("visual.", config.vision),
            *llama_like_rules(config.decoder, model="model.", head="lm_head.weight"),
        ],
        "in_memory": [
            *qwen_vit_rules("model.visual.", config.vision),
            *llama_like_rules(config.decoder, model="model.language_model.", head="lm_head.weight"),
        ],
    }
