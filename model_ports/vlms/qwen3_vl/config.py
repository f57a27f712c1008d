"""Strict reader of Qwen3-VL's config.json, as published (``rope_theta``, ``rope_scaling``) and as
transformers 5 saves it (``rope_parameters``)."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from model_ports.backbones.qwen3 import read_qwen3
from model_ports.block import DecoderConfig
from model_ports.configs import ConfigReader
from model_ports.errors import UserError
from model_ports.vision.qwen3_vit import Qwen3VitConfig
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
class Qwen3VLConfig:
    """A checkpoint's shape.

    Attributes:
        decoder, vision: the two towers.
        image_token: id of the placeholder that each visual token gets in the prompt.
    """

    decoder: DecoderConfig
    vision: Qwen3VitConfig
    image_token: int


def read_config(raw: Mapping[str, Any]) -> Qwen3VLConfig:
    """config.json -> config.

    Raises:
        UserError: an attribute that is unknown, missing, of the wrong kind, of a value that
            this port does not honour, or contradicting another.
    """
    reader = ConfigReader(raw)
    image_token = reader.take("image_token_id", int)
    reader.ignore((*VIDEO, *MARKERS))
    vision = _read_vision(reader.sub("vision_config"))
    decoder = read_nested_text(
        reader, lambda text, tied: read_qwen3(text, sections=True, tied=tied)
    )
    reader.finish()
    _check(decoder, vision, image_token)
    return Qwen3VLConfig(decoder=decoder, vision=vision, image_token=image_token)


def _read_vision(reader: ConfigReader) -> Qwen3VitConfig:
    reader.expect("hidden_act", "gelu_pytorch_tanh")
    for name in ("in_chans", "in_channels"):
        reader.expect(name, 3)
    cfg = Qwen3VitConfig(
        depth=reader.take("depth", int),
        dim=reader.take("hidden_size", int),
        heads=reader.take("num_heads", int),
        mlp_dim=reader.take("intermediate_size", int),
        out_dim=reader.take("out_hidden_size", int),
        side=_side(reader),
        patch=reader.take("patch_size", int),
        temporal=reader.take("temporal_patch_size", int),
        merge=reader.take("spatial_merge_size", int),
        deepstack=tuple(reader.take("deepstack_visual_indexes", list)),
        rope_theta=read_vision_theta(reader),
    )
    reader.ignore(VIDEO)
    reader.finish()
    return cfg


def _side(reader: ConfigReader) -> int:
    count = reader.take("num_position_embeddings", int)
    side = math.isqrt(max(count, 0))
    if side < 1 or side * side != count:
        raise UserError(
            f"{reader.where}: num_position_embeddings {count} must be a square, the rows and "
            "columns of the position table"
        )
    return side


def _check(decoder: DecoderConfig, vision: Qwen3VitConfig, image_token: int) -> None:
    """What must hold between attributes."""
    for name in ("depth", "heads", "patch", "temporal", "merge"):
        need(getattr(vision, name) > 0, f"vision_config: {name} must be positive")
    check_sections(decoder)
    check_tower(dim=vision.dim, heads=vision.heads, out_dim=vision.out_dim, decoder=decoder)
    taken: tuple[Any, ...] = vision.deepstack  # as the file has them
    need(
        all(isinstance(i, int) and 0 <= i < vision.depth for i in taken)
        and list(taken) == sorted(set(taken))
        and len(taken) <= decoder.layers,
        f"deepstack_visual_indexes {list(taken)} must be ascending indices of the "
        f"{vision.depth} vision blocks, at most one for each of the {decoder.layers} layers",
    )
    check_token("image_token_id", image_token, decoder)
