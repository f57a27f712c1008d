"""Strict reader of GLM-4.6V-Flash's config.json (model type glm4v, or its wrapper glm46v around
the same towers): rotary settings as transformers 4 or 5 writes them."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from model_ports.backbones.glm4 import read_glm4
from model_ports.block import DecoderConfig
from model_ports.configs import ConfigReader
from model_ports.errors import UserError
from model_ports.vision.glm_vit import GlmVitConfig
from model_ports.vlms.qwen_common.config import (
    GridConfig,
    check_head_dim,
    need,
    read_grid_config,
    read_tower,
)

Glm4vConfig = GridConfig[GlmVitConfig]


def read_config(raw: Mapping[str, Any]) -> Glm4vConfig:
    """config.json -> config; errors as in ``read_grid_config`` (also a mixture of experts)."""
    config = read_grid_config(raw, _read_text, _read_vision)
    end_tokens = {
        token for place in (raw, raw["text_config"]) for token in _ids(place, "eos_token_id")
    }
    for token in end_tokens:
        need(
            0 <= token < config.decoder.vocab,
            f"eos_token_id {token} is outside the vocabulary of {config.decoder.vocab}",
        )
    return dataclasses.replace(config, end_tokens=tuple(sorted(end_tokens)))


def _read_text(reader: ConfigReader, tied: bool | None) -> DecoderConfig:
    reader.expect("model_type", "glm4v_text")
    reader.expect("use_qk_norm", False)
    decoder = read_glm4(reader, sections=True, tied=tied)
    check_head_dim(decoder)
    return decoder


def _read_vision(reader: ConfigReader) -> GlmVitConfig:
    reader.expect("model_type", "glm4v_vision", "glm4v")
    reader.expect("hidden_act", "silu")
    reader.expect("attention_bias", False)
    reader.ignore(("hidden_dropout_prob",))
    shape, size = read_tower(reader), reader.take("image_size", int)
    need(size >= shape["patch"], f"vision image_size {size} is below patch_size {shape['patch']}")
    return GlmVitConfig(
        **shape,
        merger_dim=reader.take("intermediate_size", int),
        side=size // shape["patch"],
        norm_eps=reader.take("rms_norm_eps", float),
    )


def _ids(raw: Mapping[str, Any], name: str) -> list[int]:
    """Token ids of an attribute that holds one, several or none."""
    value = raw.get(name)
    ids = value if isinstance(value, list) else [value] if value is not None else []
    if not all(isinstance(i, int) for i in ids):
        raise UserError(f"config.json: {name} = {value!r}; expected token ids")
    return ids
