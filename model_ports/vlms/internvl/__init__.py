"""InternVL: InternViT on tiles, pixel shuffle, projector, and a language model. See README.md."""

from model_ports.box_format import BoxFormat
from model_ports.port import Port
from model_ports.vlms.internvl.config import InternVLConfig, read_config, settle
from model_ports.vlms.internvl.keys import layouts
from model_ports.vlms.internvl.model import InternVL
from model_ports.vlms.internvl.processor import (
    REMOTE_CHAT_SYSTEM,
    THINKING_SYSTEM,
    InternVLProcessor,
    load,
)

__all__ = [
    "PORT",
    "REMOTE_CHAT_SYSTEM",
    "THINKING_SYSTEM",
    "InternVL",
    "InternVLConfig",
    "InternVLProcessor",
]

PORT = Port(
    family="internvl",
    model_types=("internvl_chat", "internvl"),
    read_config=read_config,
    build=InternVL,
    layouts=layouts,
    processor=load,
    # Scale 0-1000 of the whole image, whatever the tiles.
    box=BoxFormat(
        units="norm1000", template="<ref>{label}</ref><box>[[{x0}, {y0}, {x1}, {y1}]]</box>"
    ),
    names={
        "internvl3-8b": ("OpenGVLab/InternVL3-8B", "OpenGVLab/InternVL3-8B-hf"),
        "internvl3.5-8b": ("OpenGVLab/InternVL3_5-8B", "OpenGVLab/InternVL3_5-8B-HF"),
        "internvl2.5-8b": ("OpenGVLab/InternVL2_5-8B",),
    },
    settle=settle,
)
