"""PaliGemma 2 assembled from the shared parts, and its tensor names on disk.

Axis letters: B batch, I images of a prompt, S side of an image in pixels, V visual tokens,
D model dim.
"""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from model_ports.backbones.gemma2 import gemma2_rules
from model_ports.convert.rules import Rule, pair
from model_ports.decoder import Decoder
from model_ports.nn.linear import Linear
from model_ports.vision.siglip import Siglip, siglip_rules
from model_ports.vision.vit import patchify
from model_ports.vlm import VLM, each_image
from model_ports.vlms.paligemma2.config import PaliGemma2Config


class PaliGemma2(VLM):
    """Tower, linear projector, and a decoder whose embeddings (not the features) are scaled."""

    def __init__(self, config: PaliGemma2Config, rngs: nnx.Rngs, dtype: jnp.dtype):
        super().__init__(Decoder(config.decoder, rngs=rngs, dtype=dtype))
        vision, dim = config.vision, config.decoder.dim
        self.vision = Siglip(vision, rngs=rngs, dtype=dtype)
        self.projector = Linear((vision.dim,), (dim,), bias=True, rngs=rngs, dtype=dtype)

    def features(self, images: dict[str, jax.Array]) -> jax.Array:
        """Visual tokens of all images of each prompt, in order, [B, V, D].

        Args:
            images: ``pixels`` float32 [B, I, 3, S, S]; zero images at the end are padding.
        """

        def tokens(pixels: jax.Array) -> jax.Array:
            return self.projector(self.vision(patchify(pixels, self.vision.cfg.patch)))

        return each_image(images["pixels"], tokens)


def layouts(config: PaliGemma2Config) -> Mapping[str, Sequence[Rule]]:
    """``published``: names on the hub. ``saved``: as transformers 5 writes them, without
    ``vision_model``. ``in_memory``, ``in_memory_4``: names of transformers' modules since 5.x
    and 4.52, which some files have."""
    old, new = "vision_tower.vision_model.", "vision_tower."
    return {
        "published": _rules(config, old, "", "language_model.model.", "language_model."),
        "saved": _rules(config, new, "", "language_model.model.", "language_model."),
        "in_memory": _rules(config, new, "model.", "model.language_model.", ""),
        "in_memory_4": _rules(config, old, "model.", "model.language_model.", ""),
    }


def _rules(config: PaliGemma2Config, tower: str, root: str, language: str, head: str) -> list[Rule]:
    return [
        *siglip_rules(f"{root}{tower}", config.vision),
        *pair(f"{root}multi_modal_projector.linear", "projector", "linear"),
        *gemma2_rules(config.decoder, model=language, head=f"{head}lm_head.weight"),
    ]
