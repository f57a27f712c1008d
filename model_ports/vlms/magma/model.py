"""Assembly: ConvNeXt on crops, projector, row separators, decoder; and the names on disk.

Axis letters: B batch, I crops of a prompt, S side of a crop in pixels, V visual tokens with
separators, D model dim.
"""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from model_ports.backbones.llama_like import llama_like_rules
from model_ports.convert.rules import Rule, pair
from model_ports.decoder import Decoder
from model_ports.nn.mlp import MLP
from model_ports.vision.convnext import ConvNext, convnext_rules
from model_ports.vlm import VLM, each_image
from model_ports.vlms.llava_common.features import in_rows
from model_ports.vlms.magma.config import MagmaConfig


class Magma(VLM):
    """Magma on a Llama-type decoder."""

    def __init__(self, config: MagmaConfig, rngs: nnx.Rngs, dtype: jnp.dtype):
        super().__init__(Decoder(config.decoder, rngs=rngs, dtype=dtype))
        dim = config.decoder.dim
        self.vision = ConvNext(config.vision, rngs=rngs, dtype=dtype)
        self.projector_mlp = MLP(config.vision.dims[-1], dim, dim, rngs=rngs, dtype=dtype)
        self.separator = nnx.Param(jnp.zeros((dim,), dtype))

    def features(self, images: dict[str, jax.Array]) -> jax.Array:
        """Visual tokens and separators of all images of each prompt, in order, [B, V, D].

        Args:
            images: ``crops`` float32 [B, I, 3, S, S], and ``index`` int32 [B, V], the token of
                the crops at each place (negative: separator). Zero padding changes nothing.
        """

        def tokens(crops: jax.Array) -> jax.Array:
            return self.projector_mlp(self.vision(crops))

        return in_rows(each_image(images["crops"], tokens), images["index"], self.separator[...])


def layouts(config: MagmaConfig) -> Mapping[str, Sequence[Rule]]:
    """The one on-disk layout."""
    tower, projector = "vision_tower.clip_vision_model.", "multi_modal_projector."
    rules = llama_like_rules(
        config.decoder, model="language_model.model.", head="language_model.lm_head.weight"
    )
    rules += convnext_rules(f"{tower}trunk.", config.vision)
    rules += pair(f"{projector}proj.0", "projector_mlp/fc1", "linear")
    rules += pair(f"{projector}proj.2", "projector_mlp/fc2", "linear")
    separator = (1, 1, config.decoder.dim)
    rules.append(Rule(f"{projector}row_seperator", "separator", "vector", shape=separator))
    # CLIP's head on the trunk, and vectors that the published code never reads.
    unused = (
        f"{tower}trunk.head.norm.weight",
        f"{tower}trunk.head.norm.bias",
        f"{tower}trunk.head.proj.weight",
        f"{tower}head.proj.weight",
        f"{projector}img_start_seperator",
        f"{projector}img_end_seperator",
    )
    rules += [Rule(key, "", "vector", use="skip") for key in unused]
    return {"published": rules}
