"""LLaVA-NeXT on Llama 3: one row of the registry. See README.md beside this file."""

from model_ports.box_format import BoxFormat
from model_ports.port import Port
from model_ports.vlms.llava_next.config import LlavaNextConfig, read_config
from model_ports.vlms.llava_next.model import LlavaNext, layouts
from model_ports.vlms.llava_next.processor import ORIGINAL_SYSTEM, LlavaNextProcessor, load

__all__ = ["ORIGINAL_SYSTEM", "PORT", "LlavaNext", "LlavaNextConfig", "LlavaNextProcessor"]

PORT = Port(
    family="llava_next",
    model_types=("llava_next", "llava_llama"),
    read_config=read_config,
    build=LlavaNext,
    layouts=layouts,
    processor=load,
    # The frame is in dispute; see README.md. ``dataclasses.replace(PORT.box,
    # frame="padded_square")`` is the other reading.
    box=BoxFormat(units="unit", template="[{x0}, {y0}, {x1}, {y1}]"),
    names={
        "llava-next-llama3-8b": (
            "llava-hf/llama3-llava-next-8b-hf",
            "lmms-lab/llama3-llava-next-8b",
        )
    },
)
