"""DeepSeek-VL2-Small: one row of the registry. See README.md beside this file."""

from model_ports.box_format import BoxFormat
from model_ports.port import Port
from model_ports.vlms.deepseek_vl2.config import DeepseekVl2Config, read_config
from model_ports.vlms.deepseek_vl2.model import DeepseekVl2, layouts
from model_ports.vlms.deepseek_vl2.processor import DeepseekVl2Processor, load

__all__ = ["PORT", "DeepseekVl2", "DeepseekVl2Config", "DeepseekVl2Processor"]

PORT = Port(
    family="deepseek_vl2",
    model_types=("deepseek_vl_v2",),
    read_config=read_config,
    build=DeepseekVl2,
    layouts=layouts,
    processor=load,
    # Of the stored image, padding not counted.
    box=BoxFormat(
        units="norm999",
        template="<|ref|>{label}<|/ref|><|det|>[[{x0}, {y0}, {x1}, {y1}]]<|/det|>",
    ),
    names={"deepseek-vl2-small": ("deepseek-ai/deepseek-vl2-small",)},
)
