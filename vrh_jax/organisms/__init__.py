"""Tiny VLMs that ship with the package: plain configurations of the real ports.

``organism:qwen`` (Qwen2.5-VL) and ``organism:intern`` (InternVL) were tuned from one backbone;
``organism:control`` (InternVL) from another one. See docs/organisms.md.
"""

from pathlib import Path

from model_ports.errors import UserError

PREFIX = "organism:"
WEIGHTS = Path(__file__).parent / "weights"


def names() -> list[str]:
    """Shipped organisms."""
    return sorted(p.parent.name for p in WEIGHTS.glob("*/model.safetensors"))


def resolve(source: str | Path) -> Path | str:
    """Folder of ``organism:<name>``; any other source is returned as it is.

    Raises:
        UserError: no such organism.
    """
    if not isinstance(source, str) or not source.startswith(PREFIX):
        return source
    name = source.removeprefix(PREFIX)
    if name not in names():
        raise UserError(f"no organism {name!r}; shipped are {', '.join(names()) or 'none'}")
    return WEIGHTS / name
