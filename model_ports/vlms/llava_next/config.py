"""Strict readers of the two config.json formats of LLaVA-NeXT on Llama.

``llava_next`` is transformers' format (``text_config``, ``vision_config``); ``llava_llama`` that
of the original repositories: a Llama config with ``mm_`` attributes, which only names its tower.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Literal

from model_ports.backbones.llama import read_llama, read_nested_llama
from model_ports.block import DecoderConfig
from model_ports.configs import ConfigReader, read_image_token
from model_ports.errors import UserError
from model_ports.images.anyres import AnyRes
from model_ports.vision.clip import NORM_EPS, read_clip
from model_ports.vision.vit import VitConfig

Format = Literal["hf", "original"]

# transformers' list where a config has none.
PINPOINTS = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))

# Shapes of the towers that original configs name. The weights are the checkpoint's own: the
# tower was trained on.
TOWERS: Mapping[str, VitConfig] = {
    "clip-vit-large-patch14-336": VitConfig(
        layers=24, dim=1024, heads=16, mlp_dim=4096, side=24, patch=14, norm_eps=NORM_EPS
    ),
}


@dataclasses.dataclass(frozen=True)
class LlavaNextConfig:
    """What a checkpoint's config.json says about the model.

    Attributes:
        decoder, vision: shapes of the language model and the tower.
        vision_blocks: how many blocks of the tower are applied.
        crops: how images are cut.
        file_format: which of the two config formats this was.
        image_token_id: id of ``<image>``; None in the original format, whose placeholder is no
            token.
    """

    decoder: DecoderConfig
    vision: VitConfig
    vision_blocks: int
    crops: AnyRes
    file_format: Format
    image_token_id: int | None


def read_config(raw: Mapping[str, Any]) -> LlavaNextConfig:
    """Read either format; refuses what it does not know or cannot honour by name."""
    reader = ConfigReader(raw)
    config = _read_hf(reader) if raw.get("model_type") == "llava_next" else _read_original(reader)
    reader.finish()
    return config


def _read_hf(reader: ConfigReader) -> LlavaNextConfig:
    reader.expect("projector_hidden_act", "gelu")
    reader.expect("multimodal_projector_bias", True)
    reader.expect("vision_feature_select_strategy", "default")
    reader.expect("use_image_newline_parameter", True)
    reader.ignore(["ignore_index", "vocab_size"])  # the wrapper's vocabulary size is not used
    vision = read_clip(reader.sub("vision_config"))
    tied = reader.take("tie_word_embeddings", bool, False)
    decoder = read_nested_llama(reader, "text_config", tied=tied)
    reader.expect("image_seq_length", vision.side**2)
    return LlavaNextConfig(
        decoder=decoder,
        vision=vision,
        vision_blocks=_blocks(reader, "vision_feature_layer", vision),
        crops=_read_crops(reader, vision),
        file_format="hf",
        image_token_id=read_image_token(reader, decoder.vocab),
    )


def _read_original(reader: ConfigReader) -> LlavaNextConfig:
    reader.expect("image_aspect_ratio", "anyres")
    reader.expect("mm_patch_merge_type", "spatial_unpad")
    reader.expect("mm_projector_type", "mlp2x_gelu")
    reader.expect("mm_vision_select_feature", "patch")
    reader.expect("mm_resampler_type", None)
    reader.expect("use_mm_proj", True)
    for name in ("mm_use_im_start_end", "mm_use_im_patch_token"):
        reader.expect(name, False)
    # Settings of training, of other ways to cut images, and of the tokenizer's truncation.
    reader.ignore(
        """freeze_mm_mlp_adapter freeze_mm_vision_resampler image_crop_resolution
        image_split_resolution mm_projector_lr mm_tunable_parts mm_vision_tower_lr
        tokenizer_model_max_length tokenizer_padding_side tune_mm_mlp_adapter
        tune_mm_vision_resampler unfreeze_mm_vision_tower""".split()
    )
    vision = _named_tower(reader)
    reader.expect("mm_hidden_size", vision.dim)
    return LlavaNextConfig(
        decoder=read_llama(reader),
        vision=vision,
        vision_blocks=_blocks(reader, "mm_vision_select_layer", vision),
        crops=_read_crops(reader, vision),
        file_format="original",
        image_token_id=None,
    )


def _named_tower(reader: ConfigReader) -> VitConfig:
    name = reader.take("mm_vision_tower", str)
    tower = TOWERS.get(PurePosixPath(name).name)
    if tower is None:
        raise UserError(
            f"{reader.where}: mm_vision_tower = {name!r} is not supported; this port has the "
            f"towers: {', '.join(TOWERS)}"
        )
    return tower


def _blocks(reader: ConfigReader, name: str, vision: VitConfig) -> int:
    """Blocks to apply: layer -1 is the output of the last one, layer 0 the input of the first."""
    layer = reader.take(name, int)
    count = layer + vision.layers + 1 if layer < 0 else layer
    if not 1 <= count <= vision.layers:
        raise UserError(
            f"{reader.where}: {name} = {layer}; expected -{vision.layers} to -1, or 1 to "
            f"{vision.layers}"
        )
    return count


def _read_crops(reader: ConfigReader, vision: VitConfig) -> AnyRes:
    listed = reader.optional("image_grid_pinpoints", list)
    pinpoints = check_pinpoints(listed or PINPOINTS, vision.image_size, reader.where)
    return AnyRes(side=vision.image_size, tokens=vision.side, pinpoints=pinpoints)


def check_pinpoints(listed: Any, side: int, where: str) -> tuple[tuple[int, int], ...]:
    """Pairs of multiples of a crop's side, in the file's order."""
    try:
        pinpoints = tuple((int(a), int(b)) for a, b in listed)
    except (TypeError, ValueError):
        pinpoints = ()
    if not pinpoints or any(n < 1 or n % side for pair in pinpoints for n in pair):
        raise UserError(
            f"{where}: image_grid_pinpoints = {listed!r}; expected pairs of multiples of the "
            f"crop's side, {side}"
        )
    return pinpoints
