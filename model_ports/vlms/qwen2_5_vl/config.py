"""Strict reader of Qwen2.5-VL's config.json, as published (text attributes at the top level)
and as transformers 5 saves it (``text_config``, ``rope_parameters``)."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from model_ports.backbones.qwen2 import read_qwen2
from model_ports.block import DecoderConfig
from model_ports.configs import ConfigReader
from model_ports.vision.qwen_vit import QwenVitConfig
from model_ports.vlms.qwen_common.config import (
    MARKERS,
    VIDEO,
    check_sections,
    check_token,
    check_tower,
    need,
    read_nested_text,
    read_vision_theta,
)


@dataclasses.dataclass(frozen=True)
class Qwen25VLConfig:
    """A checkpoint's shape.

    Attributes:
        decoder, vision: the two towers.
        image_token: id of the placeholder that each visual token gets in the prompt.
    """

    decoder: DecoderConfig
    vision: QwenVitConfig
    image_token: int


def read_config(raw: Mapping[str, Any]) -> Qwen25VLConfig:
    """config.json -> config.

    Raises:
        UserError: an attribute that is unknown, missing, of the wrong kind, of a value that
            this port does not honour, or contradicting another.
    """
    reader = ConfigReader(raw)
    image_token = reader.take("image_token_id", int)
    reader.ignore((*VIDEO, *MARKERS))
    vision = _read_vision(reader.sub("vision_config"))
    if "text_config" in reader.raw:
        decoder = read_nested_text(
            reader, lambda text, tied: read_qwen2(text, sections=True, tied=tied)
        )
    else:
        decoder = read_qwen2(reader, sections=True)
    reader.finish()
    _check(decoder, vision, image_token)
    return Qwen25VLConfig(decoder=decoder, vision=vision, image_token=image_token)


def _read_vision(reader: ConfigReader) -> QwenVitConfig:
    reader.expect("hidden_act", "silu")
    for name in ("in_chans", "in_channels"):
        reader.expect(name, 3)
    cfg = QwenVitConfig(
        depth=reader.take("depth", int),
        dim=reader.take("hidden_size", int),
        heads=reader.take("num_heads", int),
        mlp_dim=reader.take("intermediate_size", int),
        out_dim=reader.take("out_hidden_size", int),
        patch=reader.take("patch_size", int),
        temporal=reader.take("temporal_patch_size", int),
        merge=reader.take("spatial_merge_size", int),
        window=reader.take("window_size", int),
        full_blocks=tuple(reader.take("fullatt_block_indexes", list)),
        rope_theta=read_vision_theta(reader),
    )
    reader.expect("spatial_patch_size", cfg.patch)
    reader.ignore(VIDEO)
    reader.finish()
    return cfg


def _check(decoder: DecoderConfig, vision: QwenVitConfig, image_token: int) -> None:
    """What must hold between attributes."""
    for name in ("depth", "heads", "patch", "temporal", "merge"):
        need(getattr(vision, name) > 0, f"vision_config: {name} must be positive")
    need(
        decoder.head_dim * decoder.heads == decoder.dim,
        f"head_dim {decoder.head_dim} must be hidden_size / num_attention_heads, "
        f"{decoder.dim} / {decoder.heads}",
    )
    check_sections(decoder)
    check_tower(dim=vision.dim, heads=vision.heads, out_dim=vision.out_dim, decoder=decoder)
    need(
        vision.window_side >= 1,
        f"window_size {vision.window} must hold at least one block of {vision.merge} x "
        f"{vision.merge} patches of {vision.patch} pixels",
    )
    check_token("image_token_id", image_token, decoder)
