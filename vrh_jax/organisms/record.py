"""What weights were trained from: settings, versions and checksums, in ``training.json``."""

import hashlib
import json
import os
import platform
import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from vrh_jax.organisms import WEIGHTS
from vrh_jax.organisms.config import OrganismConfig

NAME = "training.json"
# Packages that decide about bits.
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "pillow")
_THREADS = "PJRT_NPROC"  # read by JAX when its CPU backend starts


def use_one_thread() -> None:
    """Make weights independent of the number of cores: sums are split over threads, and training
    amplifies the rounding. Works until the first computation of the process."""
    os.environ[_THREADS] = "1"


def _threads() -> int:
    cores = (
        os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    )
    return int(os.environ.get(_THREADS) or len(cores))


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", info.read_text()) if info.is_file() else None
    return found[1].strip() if found else platform.processor()


def digest(folder: Path) -> str:
    """SHA-256 of a model folder's weights."""
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def write_record(out: Path, settings: OrganismConfig, models: Sequence[str]) -> dict[str, Any]:
    """Write ``out/training.json`` for trained models; those of an earlier call stay in it.

    Returns:
        ``settings``, ``versions``, ``threads``, ``processor``, and ``sha256`` by model.
    """
    record: dict[str, Any] = {
        "settings": settings.model_dump(mode="json"),
        "versions": {name: version(name) for name in _PACKAGES},
        "threads": _threads(),
        "processor": _processor(),
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
    others |= {k: ours[k] for k in ("threads", "processor") if ours[k] != record[k]}
    if not others:
        return "not the bits that ship, though nothing that is known to decide about them differs"
    parts = ", ".join(f"{key} {value}" for key, value in others.items())
    return f"not the bits that ship, which were made with {parts}"
