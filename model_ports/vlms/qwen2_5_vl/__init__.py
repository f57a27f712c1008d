"""Qwen2.5-VL: one row of the registry. See README.md beside this file."""

from pathlib import Path

from model_ports.box_format import BoxFormat
from model_ports.images.qwen_pixels import QwenPixels
from model_ports.port import Port
from model_ports.vlms.qwen2_5_vl.config import Qwen25VLConfig, read_config
from model_ports.vlms.qwen2_5_vl.model import Qwen25VL, layouts
from model_ports.vlms.qwen_common.processor import GridProcessor, PatchShape


def processor(folder: Path, config: Qwen25VLConfig) -> GridProcessor:
    """Tokenizer, template and pixel settings of a checkpoint folder."""
    v = config.vision
    return GridProcessor.load(
        folder,
        vocab=config.decoder.vocab,
        image_token=config.image_token,
        pixels=QwenPixels.read(folder, patch=v.patch, merge=v.merge, temporal=v.temporal),
        shape=PatchShape(v.patch, v.temporal, v.merge, v.window_side),
    )


PORT = Port(
    family="qwen2_5_vl",
    model_types=("qwen2_5_vl",),
    read_config=read_config,
    build=Qwen25VL,
    layouts=layouts,
    processor=processor,
    box=BoxFormat(
        units="resized_pixels",
        template='```json\n[{{"bbox_2d": [{x0}, {y0}, {x1}, {y1}], "label": "{label}"}}]\n```',
    ),
    names={"qwen2.5-vl-7b": ("Qwen/Qwen2.5-VL-7B-Instruct",)},
)
