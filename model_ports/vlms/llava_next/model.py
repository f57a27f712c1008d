"""Assembly: CLIP on crops, projector, newlines, decoder; and the tensor names on disk.

Axis letters: B batch, I crops of a prompt, S side of a crop in pixels, V visual tokens with
newlines, D model dim.
"""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from model_ports.backbones.llama_like import llama_like_rules
from model_ports.convert.rules import Rule, pair
from model_ports.decoder import Decoder
from model_ports.nn.mlp import MLP
from model_ports.vision.clip import ClipVit, clip_rules
from model_ports.vlm import VLM, each_image
from model_ports.vlms.llava_common.features import in_rows
from model_ports.vlms.llava_next.config import LlavaNextConfig


class LlavaNext(VLM):
    """LLaVA-NeXT on a Llama-type decoder."""

    def __init__(self, config: LlavaNextConfig, rngs: nnx.Rngs, dtype: jnp.dtype):
        super().__init__(Decoder(config.decoder, rngs=rngs, dtype=dtype))
        dim = config.decoder.dim
        self.vision_blocks = config.vision_blocks
        self.vision = ClipVit(config.vision, rngs=rngs, dtype=dtype)
        self.projector_mlp = MLP(config.vision.dim, dim, dim, rngs=rngs, dtype=dtype)
        self.newline = nnx.Param(dim**-0.5 * jax.random.normal(rngs.params(), (dim,), dtype))

    def features(self, images: dict[str, jax.Array]) -> jax.Array:
        """Visual tokens and newlines of all images of each prompt, in prompt order, [B, V, D].

        Args:
            images: ``crops`` float32 [B, I, 3, S, S], and ``index`` int32 [B, V], the token of
                the crops at each place (negative: newline). Zero padding changes nothing.
        """

        def tokens(crops: jax.Array) -> jax.Array:
            return self.projector_mlp(self.vision(crops, blocks=self.vision_blocks))

        return in_rows(each_image(images["crops"], tokens), images["index"], self.newline[...])


def layouts(config: LlavaNextConfig) -> Mapping[str, Sequence[Rule]]:
    """``saved``: what transformers 5 writes; ``published``: the -hf repositories; ``in_memory``:
    names of transformers' modules since 4.52, with and without ``vision_model``; ``original``:
    the original repositories."""
    hf, new = "language_model.", "model."
    return {
        "published": _hf(config, "", f"{hf}model.", f"{hf}lm_head", "vision_tower.vision_model."),
        "saved": _hf(config, "", f"{hf}model.", f"{hf}lm_head", "vision_tower."),
        "in_memory": _hf(config, new, f"{new}{hf}", "lm_head", f"{new}vision_tower."),
        "in_memory_4": _hf(
            config, new, f"{new}{hf}", "lm_head", f"{new}vision_tower.vision_model."
        ),
        "original": [
            *llama_like_rules(config.decoder, model="model.", head="lm_head.weight"),
            *clip_rules("model.vision_tower.vision_tower.vision_model.", config.vision),
            *pair("model.mm_projector.0", "projector_mlp/fc1", "linear"),
            *pair("model.mm_projector.2", "projector_mlp/fc2", "linear"),
            Rule("model.image_newline", "newline", "vector"),
        ],
    }


def _hf(config: LlavaNextConfig, root: str, language: str, head: str, tower: str) -> list[Rule]:
    projector = f"{root}multi_modal_projector.linear_"
    return [
        *llama_like_rules(config.decoder, model=language, head=f"{head}.weight"),
        *clip_rules(tower, config.vision),
        *pair(f"{projector}1", "projector_mlp/fc1", "linear"),
        *pair(f"{projector}2", "projector_mlp/fc2", "linear"),
        Rule(f"{root}image_newline", "newline", "vector"),
    ]
