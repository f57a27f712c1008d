"""Strict reader of Magma's config.json (``model_type`` magma).

The published code copies every attribute of ``text_config`` to the top level as well. Its
``vision_config`` only names the trunk, beside settings of training.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from model_ports.backbones.llama import read_nested_llama
from model_ports.block import DecoderConfig
from model_ports.configs import ConfigReader, read_image_token
from model_ports.errors import UserError
from model_ports.images.stretched import Stretched
from model_ports.vision.convnext import ConvNextConfig

# Shapes of the trunks that configs name.
BACKBONES: Mapping[str, ConvNextConfig] = {
    "convnextxxlarge": ConvNextConfig(dims=(384, 768, 1536, 3072), depths=(3, 4, 30, 3)),
}
# The published code knows the projector by either name; the second one's number is a count of
# tokens that this release does not use.
PROJECTOR = re.compile(r"mlp2x_gelu(_segtokv\d+)?")


@dataclasses.dataclass(frozen=True)
class MagmaConfig:
    """What a checkpoint's config.json says about the model.

    Attributes:
        decoder, vision: shapes of the language model and the trunk.
        crops: how images are cut, as far as config.json says (the image processor's file
            overrules it).
        image_token_id: id of ``<image>``.
    """

    decoder: DecoderConfig
    vision: ConvNextConfig
    crops: Stretched
    image_token_id: int


def read_config(raw: Mapping[str, Any]) -> MagmaConfig:
    """config.json -> config; refuses what it does not know or cannot honour by name."""
    reader = ConfigReader(raw)
    tied = reader.take("tie_word_embeddings", bool, False)
    # The embeddings were resized after the copy to the top level, so that one is out of date.
    reader.ignore(["vocab_size"])
    decoder = read_nested_llama(reader, "text_config", tied=tied, copied=True)
    image_token = read_image_token(reader, decoder.vocab)
    vision, crops = _read_vision(reader.sub("vision_config"), decoder)
    reader.expect("img_size", crops.side)
    # How training data was written. The released prompt has the image's start and end tokens
    # whatever ``mm_use_image_start_end`` says.
    reader.ignore(
        """ignore_index mm_use_image_history mm_use_image_start_end mm_use_som_tom
        mm_use_som_tom_orig_img mm_use_trace_speed mm_use_trace_start_end
        remove_static_trace_pts spatial_quant_size tokenizer_vocab_size""".split()
    )
    reader.finish()
    return MagmaConfig(decoder=decoder, vision=vision, crops=crops, image_token_id=image_token)


def _read_vision(reader: ConfigReader, decoder: DecoderConfig) -> tuple[ConvNextConfig, Stretched]:
    backbone = reader.take("vision_backbone", str, "convnextxxlarge")
    if backbone not in BACKBONES:
        raise UserError(
            f"{reader.where}: vision_backbone = {backbone!r} is not supported; this port has: "
            f"{', '.join(BACKBONES)}"
        )
    vision = BACKBONES[backbone]
    projector = reader.take("mm_projector_type", str)
    if not PROJECTOR.fullmatch(projector):
        raise UserError(
            f"{reader.where}: mm_projector_type = {projector!r} is not supported; this port "
            "honours 'mlp2x_gelu' and 'mlp2x_gelu_segtokvN'"
        )
    for name in ("anyres_strategy", "img_anyres_strategy"):
        reader.expect(name, "crop")
    reader.expect("vision_feature_layer", "clip_vis_dense")
    reader.expect("mm_hidden_size", vision.dims[-1])
    reader.expect("hidden_size", decoder.dim)
    reader.expect("mm_use_row_seperator", True)  # [sic]
    reader.expect("proj_vis_to_txt_tokens", False)
    reader.expect("mm_use_im_patch_token", False)
    # Settings of training, and start and end vectors that the published code never reads.
    reader.ignore(
        """feature_outs freeze_mm_mlp_adapter freeze_mm_vision_resampler image_aspect_ratio
        mm_projector_lr mm_use_im_start_end mm_vision_select_feature mm_vision_select_layer
        pretrain_mm_mlp_adapter tokenizer_model_max_length tokenizer_padding_side
        tune_mm_mlp_adapter tune_mm_vision_resampler tune_vision_tokenizer use_mm_proj
        vision_tokenizer_lr vision_tower vision_tower_ckpt""".split()
    )
    side = reader.take("img_size", int, 512)
    crops = Stretched(
        side=side,
        tokens=side // vision.stride,
        max_crops=reader.take("max_num_crops", int, 4),
    )
    reader.finish()
    check_crops(crops, vision, reader.where)
    return vision, crops


def check_crops(crops: Stretched, vision: ConvNextConfig, where: str) -> None:
    """Refuse sizes that the trunk cannot take."""
    if crops.side < vision.stride or crops.side % vision.stride or crops.max_crops < 1:
        raise UserError(
            f"{where}: crops of {crops.side} pixels, at most {crops.max_crops}; expected a "
            f"multiple of {vision.stride} pixels and at least one crop"
        )
