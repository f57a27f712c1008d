"""Phi-4-Reasoning-Vision: one row of the registry. See README.md beside this file."""

from model_ports.box_format import BoxFormat
from model_ports.port import Port
from model_ports.vlms.phi4_rv.config import Phi4RvConfig, read_config
from model_ports.vlms.phi4_rv.model import Phi4Rv, layouts
from model_ports.vlms.phi4_rv.processor import Phi4RvProcessor, load

__all__ = ["PORT", "Phi4Rv", "Phi4RvConfig", "Phi4RvProcessor"]

PORT = Port(
    family="phi4_rv",
    model_types=("phi4-siglip",),
    read_config=read_config,
    build=Phi4Rv,
    layouts=layouts,
    processor=load,
    box=BoxFormat(units="unit", template="[{x0}, {y0}, {x1}, {y1}]"),
    names={"phi-4-reasoning-vision-15b": ("microsoft/Phi-4-reasoning-vision-15B",)},
)
