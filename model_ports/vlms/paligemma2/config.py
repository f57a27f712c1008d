"""Strict reader of PaliGemma 2's config.json, as published and as transformers 5 saves it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from model_ports.backbones.gemma2 import read_gemma2
from model_ports.block import DecoderConfig
from model_ports.configs import ConfigReader, read_image_token
from model_ports.errors import UserError
from model_ports.vision.siglip import read_siglip
from model_ports.vision.vit import VitConfig


@dataclasses.dataclass(frozen=True)
class PaliGemma2Config:
    """A checkpoint's shape.

    Attributes:
        decoder, vision: the language model and the tower.
        image_token_id: id of the placeholder that each visual token gets in the prompt.
    """

    decoder: DecoderConfig
    vision: VitConfig
    image_token_id: int


def read_config(raw: Mapping[str, Any]) -> PaliGemma2Config:
    """config.json -> config.

    Raises:
        UserError: an attribute that is unknown, missing, of the wrong kind, of a value that
            this port does not honour, or contradicting another.
    """
    reader = ConfigReader(raw)
    # The published code reads these from the two inner configs.
    reader.ignore(["_vocab_size", "vocab_size", "hidden_size", "num_hidden_layers", "ignore_index"])
    reader.expect("tie_word_embeddings", True)
    text = reader.sub("text_config")
    kind = text.raw.get("model_type")
    if kind != "gemma2":
        raise UserError(
            f"{text.where}: model_type = {kind!r} is not supported; this port reads PaliGemma 2, "
            "whose language model is 'gemma2' ('gemma' is PaliGemma 1)"
        )
    decoder = read_gemma2(text)
    # transformers 5 sets it for PaliGemma; the mask is that of ``Inputs.prefix`` either way.
    text.expect("use_bidirectional_attention", None, True)
    text.ignore(["num_image_tokens"])
    text.finish()
    vision = _read_vision(reader.sub("vision_config"), decoder.dim)
    reader.expect("projection_dim", decoder.dim)
    image_token = read_image_token(reader, decoder.vocab)
    reader.finish()
    return PaliGemma2Config(decoder=decoder, vision=vision, image_token_id=image_token)


def _read_vision(reader: ConfigReader, dim: int) -> VitConfig:
    reader.expect("model_type", "siglip_vision_model")
    reader.raw.setdefault("image_size", 224)  # SiglipVisionConfig's default
    vision = read_siglip(reader)
    reader.expect("num_image_tokens", vision.side**2)
    reader.expect("projection_dim", dim)
    reader.expect("vision_use_head", False)
    # Of the text tower that SigLIP was trained with, and of PaliGemma's first release.
    reader.ignore(["vocab_size", "projector_hidden_act", "num_positions"])
    reader.finish()
    return vision
