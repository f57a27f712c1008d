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
    check_sections,
    check_token,
    check_tower,
    need,
    read_nested_text,
    read_vision_theta,
)

# Brackets of images, which come from the chat template, and of video, which this port does not
# read.
_MARKERS = tuple(
    f"{kind}_{end}_token_id" for kind in ("image", "video") for end in ("start", "end")
)


@dataclasses.dataclass(frozen=True)
class Glm4vConfig:
    """A checkpoint's shape.

    Attributes:
        decoder, vision: the two towers.
        image_token: id of the placeholder that each visual token gets in the prompt.
        end_tokens: any of these ends an answer.
    """

    decoder: DecoderConfig
    vision: GlmVitConfig
    image_token: int
    end_tokens: tuple[int, ...]


def read_config(raw: Mapping[str, Any]) -> Glm4vConfig:
    """config.json -> config.

    Raises:
        UserError: an attribute that is unknown, missing, of the wrong kind, of a value that
            this port does not honour (a mixture of experts), or contradicting another.
    """
    reader = ConfigReader(raw)
    image_token = reader.take("image_token_id", int)
    reader.ignore(("video_token_id", *_MARKERS))
    decoder = read_nested_text(reader, _read_text)
    vision = _read_vision(reader.sub("vision_config"))
    end_tokens = tuple(
        token for place in (raw, raw["text_config"]) for token in _ids(place, "eos_token_id")
    )
    reader.finish()
    need(
        decoder.head_dim * decoder.heads == decoder.dim,
        f"head_dim {decoder.head_dim} must be hidden_size / num_attention_heads, "
        f"{decoder.dim} / {decoder.heads}",
    )
    check_sections(decoder)
    check_tower(dim=vision.dim, heads=vision.heads, out_dim=vision.out_dim, decoder=decoder)
    for name, tokens in (("image_token_id", [image_token]), ("eos_token_id", end_tokens)):
        for token in tokens:
            check_token(name, token, decoder)
    return Glm4vConfig(decoder, vision, image_token, tuple(sorted(set(end_tokens))))


def _read_text(reader: ConfigReader, tied: bool) -> DecoderConfig:
    reader.expect("model_type", "glm4v_text")
    reader.expect("use_qk_norm", False)
    reader.ignore(name for name in _MARKERS if name in reader.raw)
    return read_glm4(reader, sections=True, tied=tied)


def _read_vision(reader: ConfigReader) -> GlmVitConfig:
    reader.expect("model_type", "glm4v_vision", "glm4v")
    reader.expect("hidden_act", "silu")
    reader.expect("attention_bias", False)
    for name in ("in_chans", "in_channels"):
        reader.expect(name, 3)
    reader.ignore(("hidden_dropout_prob",))
    patch, size = reader.take("patch_size", int), reader.take("image_size", int)
    cfg = GlmVitConfig(
        depth=reader.take("depth", int),
        dim=reader.take("hidden_size", int),
        heads=reader.take("num_heads", int),
        out_dim=reader.take("out_hidden_size", int),
        merger_dim=reader.take("intermediate_size", int),
        side=size // max(patch, 1),
        patch=patch,
        temporal=reader.take("temporal_patch_size", int),
        merge=reader.take("spatial_merge_size", int),
        norm_eps=reader.take("rms_norm_eps", float),
        rope_theta=read_vision_theta(reader),
    )
    reader.finish()
    for name in ("depth", "heads", "patch", "temporal", "merge", "side"):
        need(getattr(cfg, name) > 0, f"vision_config: {name} must be positive")
    return cfg


def _ids(raw: Mapping[str, Any], name: str) -> list[int]:
    """Token ids of an attribute that holds one, several or none."""
    value = raw.get(name)
    ids = value if isinstance(value, list) else [value] if value is not None else []
    if not all(isinstance(i, int) for i in ids):
        raise UserError(f"config.json: {name} = {value!r}; expected token ids")
    return ids
