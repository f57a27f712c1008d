"""What weights were trained from: settings, versions and checksums, in ``training.json``."""

import hashlib
import json
import os
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from vrh_jax.organisms import WEIGHTS
from vrh_jax.organisms.config import OrganismConfig

NAME = "training.json"
# Packages that decide about bits.
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "pillow")


def digest(folder: Path) -> str:
    """SHA-256 of a model folder's weights."""
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def write_record(out: Path, settings: OrganismConfig, models: Sequence[str]) -> dict[str, Any]:
    """Write ``out/training.json`` for trained models; those of an earlier call stay in it.

    Returns:
        ``settings``, ``versions``, ``cpus`` that the process may use, and ``sha256`` by model.
    """
    record: dict[str, Any] = {
        "settings": settings.model_dump(mode="json"),
        "versions": {name: version(name) for name in _PACKAGES},
        "cpus": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "sha256": {name: digest(out / name) for name in models},
    }
    path = out / NAME
    if path.is_file():
        record["sha256"] = json.loads(path.read_text())["sha256"] | record["sha256"]
    path.write_text(json.dumps(record, indent=1) + "\n")
    return record


def shipped() -> dict[str, Any]:
    """The record of the weights that ship with the package."""
    record: dict[str, Any] = json.loads((WEIGHTS / NAME).read_text())
    return record


def compare(record: dict[str, Any], name: str) -> str:
    """How a trained model's weights relate to the shipped ones, as a sentence."""
    ours = shipped()
    if ours["sha256"].get(name) == record["sha256"][name]:
        return "bit for bit the weights that ship"
    if ours["settings"] != record["settings"]:
        return "not the weights that ship, which were trained with other settings"
    others = {p: v for p, v in ours["versions"].items() if record["versions"].get(p) != v}
    reason = f"they were made with {others}" if others else "another machine rounds differently"
    return f"not the bits that ship: {reason}, {ours['cpus']} cpu(s) a process"
