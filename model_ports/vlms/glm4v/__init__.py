"""GLM-4.6V-Flash: one row of the registry. See README.md beside this file."""

import dataclasses
from pathlib import Path

from model_ports.images.glm_pixels import GlmPixels
from model_ports.port import BoxFormat, Port
from model_ports.vlms.glm4v.config import Glm4vConfig, read_config
from model_ports.vlms.glm4v.model import Glm4v, layouts
from model_ports.vlms.qwen_common.processor import GridProcessor, PatchShape


def processor(folder: Path, config: Glm4vConfig) -> GridProcessor:
    """Tokenizer, template and pixel settings of a checkpoint folder.

    The template lets the model think before it answers; ``thinking=False`` turns that off.
    """
    v = config.vision
    own = GridProcessor.load(
        folder,
        vocab=config.decoder.vocab,
        image_token=config.image_token,
        pixels=GlmPixels.read(folder, patch=v.patch, merge=v.merge, temporal=v.temporal),
        shape=PatchShape(v.patch, v.temporal, v.merge),
    )
    return dataclasses.replace(own, eos_ids=tuple(sorted({*own.eos_ids, *config.end_tokens})))


PORT = Port(
    family="glm4v",
    model_types=("glm4v", "glm46v"),
    read_config=read_config,
    build=Glm4v,
    layouts=layouts,
    processor=processor,
    # Per mille of the stored image's sides; printed numbers are 0 to 999.
    box=BoxFormat(
        units="norm1000",
        template="<|begin_of_box|>[[{x0}, {y0}, {x1}, {y1}]]<|end_of_box|>",
    ),
    names={"glm-4.6v-flash": ("zai-org/GLM-4.6V-Flash",)},
)
