"""Qwen3-VL: one row of the registry. See README.md beside this file."""

from model_ports.box_format import BoxFormat
from model_ports.port import Port
from model_ports.vlms.qwen3_vl.config import read_config
from model_ports.vlms.qwen3_vl.model import Qwen3VL, layouts
from model_ports.vlms.qwen_common.processor import GridProcessor

PORT = Port(
    family="qwen3_vl",
    model_types=("qwen3_vl",),
    read_config=read_config,
    build=Qwen3VL,
    layouts=layouts,
    processor=GridProcessor.load,
    box=BoxFormat(
        units="norm1000",
        template='```json\n[{{"bbox_2d": [{x0}, {y0}, {x1}, {y1}], "label": "{label}"}}]\n```',
    ),
    names={"qwen3-vl-8b": ("Qwen/Qwen3-VL-8B-Instruct",)},
)
