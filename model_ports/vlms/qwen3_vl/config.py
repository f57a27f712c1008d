"""Strict reader of Qwen3-VL's config.json, as published (``rope_theta``, ``rope_scaling``) and as
transformers 5 saves it (``rope_parameters``)."""

import math
from collections.abc import Mapping
from typing import Any

from model_ports.backbones.qwen3 import read_qwen3
from model_ports.block import DecoderConfig
from model_ports.configs import ConfigReader
from model_ports.errors import UserError
from model_ports.vision.qwen3_vit import Qwen3VitConfig
from model_ports.vlms.qwen_common.config import GridConfig, need, read_grid_config, read_tower

Qwen3VLConfig = GridConfig[Qwen3VitConfig]


def read_config(raw: Mapping[str, Any]) -> Qwen3VLConfig:
    """config.json -> config; errors as in ``read_grid_config``."""
    config = read_grid_config(raw, _read_text, _read_vision)
    vision, layers = config.vision, config.decoder.layers
    taken: tuple[Any, ...] = vision.deepstack  # as the file has them
    need(
        all(isinstance(i, int) and 0 <= i < vision.depth for i in taken)
        and list(taken) == sorted(set(taken))
        and len(taken) <= layers,
        f"deepstack_visual_indexes {list(taken)} must be ascending indices of the "
        f"{vision.depth} vision blocks, at most one for each of the {layers} layers",
    )
    return config


def _read_text(reader: ConfigReader, tied: bool | None) -> DecoderConfig:
    return read_qwen3(reader, sections=True, tied=tied)


def _read_vision(reader: ConfigReader) -> Qwen3VitConfig:
    reader.expect("hidden_act", "gelu_pytorch_tanh")
    return Qwen3VitConfig(
        **read_tower(reader),
        mlp_dim=reader.take("intermediate_size", int),
        side=_side(reader),
        deepstack=tuple(reader.take("deepstack_visual_indexes", list)),
    )


def _side(reader: ConfigReader) -> int:
    count = reader.take("num_position_embeddings", int)
    side = math.isqrt(count)
    if side * side != count:
        raise UserError(
            f"{reader.where}: num_position_embeddings {count} must be a square, the rows and "
            "columns of the position table"
        )
    return side
