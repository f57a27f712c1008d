"""The manifest of a converted folder: what came from where."""

import datetime as dt
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from model_ports.convert.checksums import Checksums
from model_ports.convert.fingerprint import weights_digest
from model_ports.convert.headers import CODES
from model_ports.convert.plan import Plan
from model_ports.convert.store import FORMAT

_PACKAGES = ("vrh-jax", "jax", "flax", "orbax-checkpoint", "tensorstore", "numpy", "ml_dtypes")


def versions() -> dict[str, str]:
    """Versions of what took part in a conversion."""
    out = {}
    for name in _PACKAGES:
        try:
            out[name] = version(name)
        except PackageNotFoundError:
            out[name] = "not installed"
    return out


def lead_of(entry: Mapping[str, Any]) -> tuple[int, ...]:
    """``Part.lead`` of an entry of a tensor's ``into``."""
    found = (entry["layer"], entry.get("expert"))
    return tuple(index for index in found if index is not None)


def write_manifest(
    path: Path,
    plan: Plan,
    sums: Checksums,
    stored: Mapping[str, Mapping[str, str | None]],
    copied: Sequence[Path],
    shards: int,
) -> None:
    """Write manifest.json.

    Args:
        stored: parameter -> tensor -> SHA-256 of the values after a cast, in the file's order.
        copied: files of the source folder that were copied as they are.
        shards: tensor-parallel size that the chunks are cut for.
    """
    headers = plan.headers
    tensors: dict[str, dict[str, Any]] = {
        name: {
            "file": info.path.name,
            "sha256": sums.tensors[name],
            "dtype": CODES[info.dtype],
            "shape": list(info.shape),
            "into": [],
        }
        for name, info in headers.tensors.items()
    }
    for target in plan.targets.values():
        for piece in target.pieces:
            layer, *expert = piece.lead or (None,)
            entry = {"param": target.path, "layer": layer, "rows": piece.rule.rows}
            if expert:
                entry |= {"expert": expert[0]}
            if piece.rule.groups > 1:
                entry |= {"span": piece.rule.span, "groups": piece.rule.groups}
            cast = stored[target.path][piece.info.name]
            if cast:
                entry["stored_sha256"] = cast
            tensors[piece.info.name]["into"].append(entry)
    for name in plan.copies:
        tensors[name]["use"] = "copy"
    for name in plan.skipped:
        tensors[name]["use"] = "skip"
    manifest = {
        "format": FORMAT,
        "source": str(headers.folder.absolute()),
        "created": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "family": plan.port.family,
        "layout": plan.layout,
        "dtype": plan.dtype.name if plan.dtype else None,
        "shards": shards,
        "weights_digest": weights_digest(headers),
        "files": [
            {"name": file.name, "size": file.stat().st_size, "sha256": sums.files[file.name]}
            for file in headers.files
        ],
        "copied": {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in copied},
        "parameters": {
            target.path: {"shape": list(target.shape), "dtype": target.dtype.name}
            for target in plan.targets.values()
        },
        "tensors": tensors,
    }
    path.write_text(json.dumps(manifest, indent=1))
