"""Config pieces that the Qwen-VL families share."""

from collections.abc import Callable
from typing import Any

from model_ports.block import DecoderConfig
from model_ports.configs import BOOKKEEPING, ConfigReader
from model_ports.errors import UserError

VISION_ROPE_THETA = 10000.0  # fixed in the published code; transformers 5 writes it down

# Tokens and settings of video input, which these ports do not read, and the image's brackets,
# which come from the chat template.
VIDEO = ("video_token_id", "vision_token_id", "tokens_per_second")
MARKERS = ("vision_start_token_id", "vision_end_token_id")


def read_nested_text(
    reader: ConfigReader, read: Callable[[ConfigReader, bool], DecoderConfig]
) -> DecoderConfig:
    """The decoder of a config with ``text_config``.

    Args:
        reader: of the whole config.json.
        read: (reader of text_config, whether the head is tied) -> decoder.
    """
    text = reader.sub("text_config")
    tied = reader.take("tie_word_embeddings", bool, False)
    tied = text.take("tie_word_embeddings", bool, False) or tied
    decoder = read(text, tied)
    repeated = text.seen - {"tie_word_embeddings"}
    text.ignore(("image_token_id", *VIDEO, *MARKERS))
    text.finish()
    # Some transformers 4 versions wrote text attributes in both places.
    for name in sorted(repeated & set(reader.raw) - BOOKKEEPING):
        reader.expect(name, text.raw.get(name))
    return decoder


def read_vision_theta(reader: ConfigReader) -> float:
    """Base of the tower's rotary frequencies, from a reader of ``vision_config``."""
    rope = ConfigReader(
        reader.optional("rope_parameters", dict) or {}, f"{reader.where}: rope_parameters"
    )
    rope.expect("rope_type", "axial", "default")
    theta = rope.take("rope_theta", float, VISION_ROPE_THETA)
    rope.finish()
    return theta


def need(holds: bool, message: str) -> None:
    """What must hold between attributes of config.json.

    Raises:
        UserError: it does not.
    """
    if not holds:
        raise UserError(f"config.json: {message}")


def check_sections(decoder: DecoderConfig) -> None:
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


def check_tower(*, dim: int, heads: int, out_dim: int, decoder: DecoderConfig) -> None:
    """A rotary vision tower that feeds this decoder."""
    need(
        out_dim == decoder.dim,
        f"vision out_hidden_size {out_dim} must equal hidden_size {decoder.dim}",
    )
    need(
        dim % (4 * heads) == 0,
        f"vision hidden_size {dim} must be a multiple of 4 * num_heads, {4 * heads}, since each "
        "head has two rotary axes",
    )


def check_token(name: str, token: int, decoder: DecoderConfig) -> None:
    """A token id must have an embedding."""
    need(
        0 <= token < decoder.vocab,
        f"{name} {token} is outside the vocabulary of {decoder.vocab}",
    )
