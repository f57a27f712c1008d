"""Qwen2.5-VL: one row of the registry. See README.md beside this file."""

from model_ports.box_format import BoxFormat
from model_ports.port import Port
from model_ports.vlms.qwen2_5_vl.config import read_config
from model_ports.vlms.qwen2_5_vl.model import Qwen25VL, layouts
from model_ports.vlms.qwen_common.processor import GridProcessor

PORT = Port(
    family="qwen2_5_vl",
    model_types=("qwen2_5_vl",),
    read_config=read_config,
    build=Qwen25VL,
    layouts=layouts,
    processor=GridProcessor.load,
    box=BoxFormat(
        units="resized_pixels",
        template='```json\n[{{"bbox_2d": [{x0}, {y0}, {x1}, {y1}], "label": "{label}"}}]\n```',
    ),
    names={"qwen2.5-vl-7b": ("Qwen/Qwen2.5-VL-7B-Instruct",)},
)
