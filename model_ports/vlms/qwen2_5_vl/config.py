"""Strict reader of Qwen2.5-VL's config.json, as published (text attributes at the top level)
and as transformers 5 saves it (``text_config``, ``rope_parameters``)."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from model_ports.backbones.qwen2 import read_qwen2
from model_ports.block import DecoderConfig
from model_ports.configs import BOOKKEEPING, ConfigReader
from model_ports.errors import UserError
from model_ports.vision.qwen_vit import QwenVitConfig

VISION_ROPE_THETA = 10000.0  # fixed in the published code; transformers 5 writes it down

# Tokens and settings of video input, which this port does not read.
_VIDEO = ("video_token_id", "vision_token_id", "tokens_per_second")
_MARKERS = ("vision_start_token_id", "vision_end_token_id")


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
    reader.ignore((*_VIDEO, *_MARKERS))
    vision = _read_vision(reader.sub("vision_config"))
    if "text_config" in reader.raw:
        decoder = _read_nested_text(reader)
    else:
        decoder = read_qwen2(reader, sections=True)
    reader.finish()
    _check(decoder, vision, image_token)
    return Qwen25VLConfig(decoder=decoder, vision=vision, image_token=image_token)


def _read_nested_text(reader: ConfigReader) -> DecoderConfig:
    text = reader.sub("text_config")
    tied = reader.take("tie_word_embeddings", bool, False)
    tied = tied or text.take("tie_word_embeddings", bool, False)
    decoder = read_qwen2(text, sections=True, tied=tied)
    repeated = text.seen - {"tie_word_embeddings"}
    text.ignore(("image_token_id", *_VIDEO, *_MARKERS))
    text.finish()
    # Some transformers 4 versions wrote text attributes in both places.
    for name in sorted(repeated & set(reader.raw) - BOOKKEEPING):
        reader.expect(name, text.raw.get(name))
    return decoder


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
        rope_theta=_vision_theta(reader),
    )
    reader.expect("spatial_patch_size", cfg.patch)
    reader.ignore(_VIDEO)
    reader.finish()
    return cfg


def _vision_theta(reader: ConfigReader) -> float:
    rope = ConfigReader(
        reader.optional("rope_parameters", dict) or {}, f"{reader.where}: rope_parameters"
    )
    rope.expect("rope_type", "axial", "default")
    theta = rope.take("rope_theta", float, VISION_ROPE_THETA)
    rope.finish()
    return theta


def _check(decoder: DecoderConfig, vision: QwenVitConfig, image_token: int) -> None:
    """What must hold between attributes."""
    sections = decoder.rope.sections or ()

    def need(holds: bool, message: str) -> None:
        if not holds:
            raise UserError(f"config.json: {message}")

    for name in ("depth", "heads", "patch", "temporal", "merge"):
        need(getattr(vision, name) > 0, f"vision_config: {name} must be positive")
    need(
        decoder.head_dim * decoder.heads == decoder.dim,
        f"head_dim {decoder.head_dim} must be hidden_size / num_attention_heads, "
        f"{decoder.dim} / {decoder.heads}",
    )
    need(
        len(sections) == 3 and sum(sections) == decoder.head_dim // 2,
        f"mrope_section {list(sections)} must be three lengths that sum to half the head dim, "
        f"{decoder.head_dim // 2}",
    )
    need(
        vision.out_dim == decoder.dim,
        f"vision out_hidden_size {vision.out_dim} must equal hidden_size {decoder.dim}",
    )
    need(
        vision.dim % (4 * vision.heads) == 0,
        f"vision hidden_size {vision.dim} must be a multiple of 4 * num_heads, "
        f"{4 * vision.heads}, since each head has two rotary axes",
    )
    need(
        vision.window_side >= 1,
        f"window_size {vision.window} must hold at least one block of {vision.merge} x "
        f"{vision.merge} patches of {vision.patch} pixels",
    )
    need(
        0 <= image_token < decoder.vocab,
        f"image_token_id {image_token} is outside the vocabulary of {decoder.vocab}",
    )
