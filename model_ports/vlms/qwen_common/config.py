"""Strict reading of a config.json, as far as the models of Qwen-VL's kind share it: a decoder with
M-RoPE, a rotary vision tower, one placeholder token per visual token."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from model_ports.block import DecoderConfig
from model_ports.configs import BOOKKEEPING, ConfigReader, read_image_token
from model_ports.errors import UserError
from model_ports.vision.rotary import RotaryVitConfig

VISION_ROPE_THETA = 10000.0  # fixed in the published code; transformers 5 writes it down

# Tokens and settings of video input, which these ports do not read, and the brackets of images and
# videos, which come from the chat template.
VIDEO = ("video_token_id", "vision_token_id", "tokens_per_second")
BRACKETS = tuple(
    f"{kind}_{end}_token_id" for kind in ("vision", "image", "video") for end in ("start", "end")
)

V = TypeVar("V", bound=RotaryVitConfig)
ReadText = Callable[[ConfigReader, bool | None], DecoderConfig]


@dataclasses.dataclass(frozen=True)
class GridConfig(Generic[V]):
    """A checkpoint's shape.

    Attributes:
        decoder, vision: the two towers.
        image_token_id: id of the placeholder that each visual token gets in the prompt.
        end_tokens: ids that end an answer, besides those of the other files.
    """

    decoder: DecoderConfig
    vision: V
    image_token_id: int
    end_tokens: tuple[int, ...] = ()


def read_grid_config(
    raw: Mapping[str, Any],
    text: ReadText,
    vision: Callable[[ConfigReader], V],
    *,
    flat: bool = False,
) -> GridConfig[V]:
    """config.json -> config.

    Args:
        text: (reader, whether the head is tied, if the wrapper says so) -> decoder.
        vision: reader of ``vision_config``, which the caller finishes -> tower.
        flat: published files have the text attributes at the top level; then ``text_config`` is
            read only where there is one.

    Raises:
        UserError: an attribute that is unknown, missing, of the wrong kind, of a value that
            the port does not honour, or contradicting another.
    """
    reader = ConfigReader(raw)
    reader.ignore((*VIDEO, *BRACKETS))
    nested = not flat or "text_config" in reader.raw
    decoder = _read_nested(reader, text) if nested else text(reader, None)
    inner = reader.sub("vision_config")
    tower = vision(inner)
    inner.finish()
    image_token = read_image_token(reader, decoder.vocab)
    reader.finish()
    _check_sections(decoder)
    _check_tower(tower, decoder)
    return GridConfig(decoder, tower, image_token)


def _read_nested(reader: ConfigReader, text: ReadText) -> DecoderConfig:
    """The decoder of a config with ``text_config``."""
    inner = reader.sub("text_config")
    tied = reader.take("tie_word_embeddings", bool, False)
    tied = inner.take("tie_word_embeddings", bool, False) or tied
    decoder = text(inner, tied)
    repeated = inner.seen - {"tie_word_embeddings"}
    inner.ignore(("image_token_id", *VIDEO, *BRACKETS))
    inner.finish()
    # Some transformers 4 versions wrote text attributes in both places.
    for name in sorted(repeated & set(reader.raw) - BOOKKEEPING):
        reader.expect(name, inner.raw.get(name))
    return decoder


def read_tower(reader: ConfigReader) -> dict[str, Any]:
    """Arguments of ``RotaryVitConfig``, from a reader of ``vision_config``."""
    for name in ("in_chans", "in_channels"):
        reader.expect(name, 3)
    reader.ignore(VIDEO)
    rope = ConfigReader(
        reader.optional("rope_parameters", dict) or {}, f"{reader.where}: rope_parameters"
    )
    rope.expect("rope_type", "axial", "default")
    theta = rope.take("rope_theta", float, VISION_ROPE_THETA)
    rope.finish()
    return {
        "depth": reader.take("depth", int),
        "dim": reader.take("hidden_size", int),
        "heads": reader.take("num_heads", int),
        "out_dim": reader.take("out_hidden_size", int),
        "patch": reader.take("patch_size", int),
        "temporal": reader.take("temporal_patch_size", int),
        "merge": reader.take("spatial_merge_size", int),
        "rope_theta": theta,
    }


def need(holds: bool, message: str) -> None:
    """What must hold between attributes of config.json.

    Raises:
        UserError: it does not.
    """
    if not holds:
        raise UserError(f"config.json: {message}")


def check_head_dim(decoder: DecoderConfig) -> None:
    """For models whose code divides the width by the heads, whatever the config says."""
    need(
        decoder.head_dim * decoder.heads == decoder.dim,
        f"head_dim {decoder.head_dim} must be hidden_size / num_attention_heads, "
        f"{decoder.dim} / {decoder.heads}",
    )


def _check_sections(decoder: DecoderConfig) -> None:
    """M-RoPE: three axes share the frequencies of the rotated dims. Interleaved sections may be
    longer or shorter: they end with the frequencies, and axis 0 takes what they leave."""
    sections: tuple[Any, ...] = decoder.rope.sections or ()  # as the file has them
    half = (decoder.rope.dim or decoder.head_dim) // 2
    lengths = [n for n in sections if isinstance(n, int) and n >= 0]
    need(
        len(sections) == len(lengths) == 3 and (decoder.rope.interleaved or sum(lengths) == half),
        f"mrope_section {list(sections)} must be three lengths"
        + ("" if decoder.rope.interleaved else f" that sum to half the rotated dims, {half}"),
    )


def _check_tower(vision: RotaryVitConfig, decoder: DecoderConfig) -> None:
    need(
        vision.out_dim == decoder.dim,
        f"vision out_hidden_size {vision.out_dim} must equal hidden_size {decoder.dim}",
    )
    need(
        vision.dim % (4 * vision.heads) == 0,
        f"vision hidden_size {vision.dim} must be a multiple of 4 * num_heads, "
        f"{4 * vision.heads}, since each head has two rotary axes",
    )
