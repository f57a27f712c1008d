"""The ports, found by the ``model_type`` of a config.json."""

import importlib
from collections.abc import Mapping
from functools import cache
from typing import Any

from model_ports.errors import UserError
from model_ports.port import Port

# Modules with a PORT; a new port is one row here.
_MODULES = (
    "model_ports.vlms.qwen2_5_vl",
    "model_ports.vlms.qwen3_vl",
    "model_ports.vlms.internvl",
    "model_ports.vlms.llava_next",
    "model_ports.vlms.magma",
    "model_ports.vlms.glm4v",
    "model_ports.vlms.paligemma2",
    "model_ports.vlms.deepseek_vl2",
    "model_ports.vlms.phi4_rv",
    "model_ports.backbones.llama",
)


@cache
def ports() -> tuple[Port, ...]:
    """All ports, in the order of the study."""
    return tuple(importlib.import_module(name).PORT for name in _MODULES)


def port_for(config: Mapping[str, Any]) -> Port:
    """The port that reads this config.json."""
    kind = config.get("model_type")
    for port in ports():
        if kind in port.model_types:
            return port
    known = ", ".join(sorted(t for p in ports() for t in p.model_types))
    raise UserError(f"config.json: model_type {kind!r} has no port; ported are: {known}")
