"""Strict reader of Phi-4-Reasoning-Vision's config.json: a Phi-3 config with attributes of the
vision side beside it."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from model_ports.backbones.phi import read_phi
from model_ports.block import DecoderConfig
from model_ports.configs import ConfigReader
from model_ports.errors import UserError
from model_ports.images.naflex import Naflex
from model_ports.vision.siglip2_naflex import NaflexConfig, read_naflex

SKIPPED_BLOCKS = 1  # the published code reads ``hidden_states[-2]``
DEFAULT_PATCH = 16  # where neither the tower's config nor its name says


@dataclasses.dataclass(frozen=True)
class Phi4RvConfig:
    """What a checkpoint's config.json says about the model.

    Attributes:
        decoder, vision: shapes of the language model and the tower.
        pixels: how images are resized.
        max_length: the published code cuts a prompt off after so many tokens; None if it does
            not.
    """

    decoder: DecoderConfig
    vision: NaflexConfig
    pixels: Naflex
    max_length: int | None

    @property
    def vision_blocks(self) -> int:
        """How many blocks of the tower are applied."""
        return self.vision.layers - SKIPPED_BLOCKS


def read_config(raw: Mapping[str, Any]) -> Phi4RvConfig:
    """config.json -> config.

    Raises:
        UserError: an attribute that is unknown, missing, of the wrong kind, of a value that
            this port does not honour, or contradicting another.
    """
    reader = ConfigReader(raw)
    decoder = read_phi(reader)
    vision = read_naflex(reader.sub("vision_config"), patch=_patch_of_tower(reader))
    reader.expect("mm_projector_type", "mlp2x_gelu")
    reader.expect("mm_hidden_size", vision.dim)
    reader.expect("use_mm_proj", True)
    reader.expect("use_s2", False)
    # Settings of training, of the tokenizer's padding, and of towers that are not NaFlex.
    reader.ignore(
        """continuous_training freeze_mm_mlp_adapter image_aspect_ratio mm_projector_lr
        tokenizer_padding_side tune_mm_mlp_adapter unfreeze_vision_tower""".split()
    )
    low = reader.take("min_num_patches", int, 256)
    high = reader.take("max_num_patches", int, 3600)
    max_length = reader.optional("tokenizer_model_max_length", int)
    reader.finish()
    if not 1 <= low <= high:
        raise UserError(
            f"{reader.where}: min_num_patches = {low}, max_num_patches = {high}; expected "
            "1 <= min_num_patches <= max_num_patches"
        )
    if vision.layers <= SKIPPED_BLOCKS:
        raise UserError(
            f"{reader.where}: vision_config: num_hidden_layers = {vision.layers}; this model "
            "reads the features of the second-last block"
        )
    return Phi4RvConfig(decoder, vision, Naflex(vision.patch, low, high), max_length)


def _patch_of_tower(reader: ConfigReader) -> int:
    """Side of a patch, which the published code reads from the name of the tower."""
    name = reader.take("mm_vision_tower", str)
    if "siglip2" not in name.lower() or "naflex" not in name.lower():
        raise UserError(
            f"{reader.where}: mm_vision_tower = {name!r} is not supported; this port reads "
            "SigLIP 2 in its NaFlex form"
        )
    found = re.search(r"patch(\d+)", name.lower())
    return int(found[1]) if found else DEFAULT_PATCH
