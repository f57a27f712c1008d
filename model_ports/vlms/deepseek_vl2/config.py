"""Strict reader of DeepSeek-VL2's config.json (``model_type`` deepseek_vl_v2).

Published files leave out what equals the defaults of the repository's configuration classes; they
are the defaults here. DeepSeek-OCR has the same ``model_type`` and is refused by its attributes.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from model_ports.backbones.deepseek_moe import read_deepseek_moe
from model_ports.block import DecoderConfig
from model_ports.configs import ConfigReader
from model_ports.errors import UserError
from model_ports.images.letterbox import Letterbox
from model_ports.vision.siglip2_naflex import NaflexConfig

JOINED = 2  # patches along one side of a token


@dataclasses.dataclass(frozen=True)
class DeepseekVl2Config:
    """What a checkpoint's config.json says about the model.

    Attributes:
        decoder, vision: shapes of the language model and the tower.
        crops: how images are cut.
    """

    decoder: DecoderConfig
    vision: NaflexConfig
    crops: Letterbox


def read_config(raw: Mapping[str, Any]) -> DeepseekVl2Config:
    """config.json -> config; refuses what it does not know or cannot honour by name."""
    reader = ConfigReader(raw)
    tied = reader.take("tie_word_embeddings", bool, False)
    text = reader.sub("language_config")
    text.expect("model_type", "deepseek_v2")
    decoder = read_deepseek_moe(text, tied=tied)
    text.finish()
    side, vision = _read_vision(reader.sub("vision_config"))
    _read_projector(reader.sub("projector_config"), vision, decoder)
    reader.expect("tile_tag", "2D")
    reader.expect("global_view_pos", "head")
    canvases = _canvases(reader, side)
    reader.finish()
    crops = Letterbox(side=side, patch=vision.patch, joined=JOINED, canvases=canvases)
    return DeepseekVl2Config(decoder=decoder, vision=vision, crops=crops)


def _read_vision(reader: ConfigReader) -> tuple[int, NaflexConfig]:
    """(side of a crop in pixels, the tower)."""
    reader.expect("model_type", "vision")
    reader.expect("class_token", False)
    reader.expect("global_pool", "map")
    reader.expect("ignore_head", True)
    reader.expect("num_classes", 0)
    # Name of the weights that training began with; settings of training.
    reader.ignore(
        """model_name use_checkpoint weight_init deterministic num_recomputing_layers""".split()
    )
    side, patch = reader.take("image_size", int, 384), reader.take("patch_size", int, 16)
    dim, heads = reader.take("width", int, 1024), reader.take("heads", int, 16)
    ratio = reader.take("mlp_ratio", float, 4.0)
    if side < patch:
        raise UserError(f"{reader.where}: image_size {side} is less than one patch of {patch}")
    if dim % heads:
        raise UserError(f"{reader.where}: width {dim} is not a multiple of {heads} heads")
    vision = NaflexConfig(
        layers=reader.take("layers", int, 24),
        dim=dim,
        heads=heads,
        mlp_dim=int(dim * ratio),
        side=side // patch,
        patch=patch,
        norm_eps=1e-6,
    )
    reader.finish()
    return side, vision


def _read_projector(reader: ConfigReader, vision: NaflexConfig, decoder: DecoderConfig) -> None:
    reader.expect("model_type", "mlp_projector")
    reader.expect("projector_type", "downsample_mlp_gelu")
    reader.expect("depth", 2)
    reader.expect("mlp_ratio", 1)
    reader.expect("downsample_ratio", JOINED)
    reader.expect("token_pooling", False)
    for name, default, wanted in (
        ("input_dim", 1152, vision.dim),
        ("n_embed", 2048, decoder.dim),
    ):
        value = reader.take(name, int, default)
        if value != wanted:
            raise UserError(
                f"{reader.where}: {name} = {value} does not fit the tower and the language model; "
                f"expected {wanted}"
            )
    reader.finish()


def _canvases(reader: ConfigReader, side: int) -> tuple[tuple[int, int], ...]:
    listed = reader.take("candidate_resolutions", list)
    fits = [
        isinstance(one, list)
        and len(one) == 2
        and all(type(n) is int and n >= side and n % side == 0 for n in one)
        for one in listed
    ]
    if not listed or not all(fits):
        raise UserError(
            f"{reader.where}: candidate_resolutions = {listed!r}; expected pairs [width, height] "
            f"of multiples of {side}"
        )
    return tuple((one[0], one[1]) for one in listed)
