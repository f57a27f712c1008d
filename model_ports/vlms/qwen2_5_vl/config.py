"""Strict reader of Qwen2.5-VL's config.json, as published (text attributes at the top level)
and as transformers 5 saves it (``text_config``, ``rope_parameters``)."""

from collections.abc import Mapping
from typing import Any

from model_ports.backbones.qwen2 import read_qwen2
from model_ports.block import DecoderConfig
from model_ports.configs import ConfigReader
from model_ports.vision.qwen_vit import QwenVitConfig
from model_ports.vlms.qwen_common.config import (
    GridConfig,
    check_head_dim,
    need,
    read_grid_config,
    read_tower,
)

Qwen25VLConfig = GridConfig[QwenVitConfig]


def read_config(raw: Mapping[str, Any]) -> Qwen25VLConfig:
    """config.json -> config; errors as in ``read_grid_config``."""
    return read_grid_config(raw, _read_text, _read_vision, flat=True)


def _read_text(reader: ConfigReader, tied: bool | None) -> DecoderConfig:
    decoder = read_qwen2(reader, sections=True, tied=tied)
    check_head_dim(decoder)
    return decoder


def _read_vision(reader: ConfigReader) -> QwenVitConfig:
    reader.expect("hidden_act", "silu")
    cfg = QwenVitConfig(
        **read_tower(reader),
        mlp_dim=reader.take("intermediate_size", int),
        window=reader.take("window_size", int),
        full_blocks=tuple(reader.take("fullatt_block_indexes", list)),
    )
    reader.expect("spatial_patch_size", cfg.patch)
    need(
        cfg.window_side >= 1,
        f"window_size {cfg.window} must hold at least one block of {cfg.merge} x {cfg.merge} "
        f"patches of {cfg.patch} pixels",
    )
    return cfg
