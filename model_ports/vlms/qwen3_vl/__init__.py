"""Qwen3-VL: one row of the registry. See README.md beside this file."""

from pathlib import Path

from model_ports.box_format import BoxFormat
from model_ports.images.qwen_pixels import QwenPixels
from model_ports.port import Port
from model_ports.vlms.qwen3_vl.config import Qwen3VLConfig, read_config
from model_ports.vlms.qwen3_vl.model import Qwen3VL, layouts
from model_ports.vlms.qwen_common.processor import GridProcessor, PatchShape


def processor(folder: Path, config: Qwen3VLConfig) -> GridProcessor:
    """Tokenizer, template and pixel settings of a checkpoint folder."""
    v = config.vision
    return GridProcessor.load(
        folder,
        vocab=config.decoder.vocab,
        image_token=config.image_token,
        pixels=QwenPixels.read(folder, patch=v.patch, merge=v.merge, temporal=v.temporal),
        shape=PatchShape(v.patch, v.temporal, v.merge),
    )


PORT = Port(
    family="qwen3_vl",
    model_types=("qwen3_vl",),
    read_config=read_config,
    build=Qwen3VL,
    layouts=layouts,
    processor=processor,
    box=BoxFormat(
        units="norm1000",
        template='```json\n[{{"bbox_2d": [{x0}, {y0}, {x1}, {y1}], "label": "{label}"}}]\n```',
    ),
    names={"qwen3-vl-8b": ("Qwen/Qwen3-VL-8B-Instruct",)},
)
