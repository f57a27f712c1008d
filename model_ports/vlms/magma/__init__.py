"""Magma: one row of the registry. See README.md beside this file."""

from model_ports.box_format import BoxFormat
from model_ports.port import Port
from model_ports.vlms.magma.config import MagmaConfig, read_config
from model_ports.vlms.magma.model import Magma, layouts
from model_ports.vlms.magma.processor import SYSTEM, load

__all__ = ["PORT", "SYSTEM", "Magma", "MagmaConfig"]

PORT = Port(
    family="magma",
    model_types=("magma",),
    read_config=read_config,
    build=Magma,
    layouts=layouts,
    processor=load,
    # Not documented; see README.md.
    box=BoxFormat(units="unit", template="[{x0}, {y0}, {x1}, {y1}]"),
    names={"magma-8b": ("microsoft/Magma-8B",)},
)
