"""Compare a converted folder with its source, tensor by tensor and bit by bit."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from model_ports.configs import read_json
from model_ports.convert.filetensors import FileTensor, FolderReader, blocks, file_tensors
from model_ports.convert.headers import DTYPES
from model_ports.convert.manifest import lead_of
from model_ports.convert.pieces import Piece, cast
from model_ports.convert.plan import Plan, plan_folder, settled_config
from model_ports.convert.progress import Progress
from model_ports.convert.source import PARAMS, is_converted
from model_ports.convert.store import chunk_faults, read_manifest, stored_arrays
from model_ports.errors import UserError
from model_ports.port import Port
from model_ports.registry import port_for


def verify_folder(
    converted: Path,
    source: Path | None = None,
    *,
    logits: bool = True,
    port: Port | None = None,
    show: bool = False,
) -> dict[str, Any]:
    """Check a converted folder.

    With the source at hand every value is compared with the source's bits (after the recorded
    cast). Without it, the SHA-256 of every tensor, rebuilt in the file's order, is compared
    with the one that the conversion took of the source.

    Args:
        source: the Hugging Face folder; None takes the recorded one if it still exists.
        logits: also compare logits with transformers, if torch and the source are there.

    Returns:
        ``ok``; ``against`` (``source`` or ``checksums``); ``tensors`` compared; ``mismatches``
        (sentences); ``logits`` (see ``model_ports.convert.logits``).
    """
    if not is_converted(converted):
        raise UserError(f"{converted} is not a converted checkpoint (`vrh convert` makes one)")
    manifest = read_manifest(converted)
    if source is None and Path(manifest["source"]).is_dir():
        source = Path(manifest["source"])
    mismatches = _changed_files(converted, manifest)
    raw = read_json(converted / "config.json")
    port = port or port_for(raw)
    incomplete = chunk_faults(converted)
    if incomplete:
        found = incomplete
    elif source is None:
        config = settled_config(port, raw, tuple(manifest["tensors"]))
        found = _against_checksums(converted, manifest, port, config, show=show)
    else:
        plan = plan_folder(source, dtype=manifest["dtype"], port=port)
        found = _against_source(converted, plan, show=show)
    mismatches += found
    result: dict[str, Any] = {
        "against": "source" if source else "checksums",
        "source": str(source) if source else None,
        "tensors": sum(bool(t["into"]) for t in manifest["tensors"].values()),
        "mismatches": mismatches,
        "ok": not mismatches,
    }
    if not logits or source is None or mismatches:
        why = "not asked for" if not logits else "no source" if source is None else "mismatches"
        result["logits"] = {"compared": False, "why": why}
        return result
    from model_ports.convert.logits import compare_logits

    result["logits"] = compare_logits(converted, source, port)
    result["ok"] = result["logits"].get("ok", True)
    return result


def _changed_files(converted: Path, manifest: Mapping[str, Any]) -> list[str]:
    """Copied files that are no longer what they were, and parameters of another shape."""
    changed = []
    for name, expected in manifest["copied"].items():
        path = converted / name
        if not path.is_file():
            changed.append(f"{name} is missing")
        elif hashlib.sha256(path.read_bytes()).hexdigest() != expected:
            changed.append(f"{name} was changed after the conversion")
    stored = {
        path: {"shape": list(shape), "dtype": dtype.name}
        for path, (shape, dtype) in stored_arrays(converted).items()
    }
    recorded = manifest["parameters"]
    return changed + [
        f"parameter {path} is {stored.get(path)}, was {recorded.get(path)}"
        for path in sorted(set(stored) | set(recorded))
        if stored.get(path) != recorded.get(path)
    ]


def _against_source(converted: Path, plan: Plan, *, show: bool) -> list[str]:
    reader = FolderReader(converted / PARAMS)
    stored = stored_arrays(converted)
    if set(stored) != set(plan.targets):
        differ = sorted(set(stored) ^ set(plan.targets))
        return [f"the source has other parameters: {', '.join(differ[:5])}"]
    progress = Progress(
        "verifying", len(plan.targets), plan.nbytes, item="parameters", enabled=show
    )
    mismatches = []
    for path, target in plan.targets.items():
        if stored[path][0] != target.shape:
            mismatches.append(f"parameter {path} has another shape than the source's")
            progress.add(1, target.nbytes)
            continue
        for piece in target.pieces:
            problem = _compare(piece, reader, stored[path][1])
            if problem:
                mismatches.append(problem)
            progress.add(0, target.nbytes // len(target.pieces))
        progress.add(1, 0)
    progress.finish()
    return mismatches


def _compare(piece: Piece, reader: FolderReader, dtype: np.dtype) -> str:
    """Why a piece differs from the source; empty if it does not."""
    count, first = 0, ""
    for rows, ours in blocks(piece, reader):
        span = rows.indices(piece.block_shape[0])[:2] if piece.info.shape else None
        found = piece.read_rows(*span) if span else piece.info.read()
        theirs = cast(found, dtype, piece.info.name)
        differs = _bits(ours).reshape(ours.shape) != _bits(theirs).reshape(theirs.shape)
        if differs.any():
            if not count:
                at = tuple(int(i) for i in np.argwhere(differs)[0])
                where = at
                if span:
                    row = span[0] + at[0]
                    where = (piece.file_rows(row, row + 1)[0].start, *at[1:])
                first = f"first at {list(where)}: {ours[at]} instead of {theirs[at]}"
            count += int(differs.sum())
    if not count:
        return ""
    return f"tensor {piece.info.name}: {count} values of {piece.rule.param} differ, {first}"


def _bits(values: np.ndarray) -> np.ndarray:
    """Values as unsigned integers, so that NaN equals itself and -0 differs from 0."""
    return np.ascontiguousarray(values).reshape(-1).view(f"u{values.dtype.itemsize}")


def _against_checksums(
    converted: Path, manifest: Mapping[str, Any], port: Port, config: Any, *, show: bool
) -> list[str]:
    reader = FolderReader(converted / PARAMS)
    tensors = file_tensors(port, config, manifest["layout"])
    recorded = {name: t for name, t in manifest["tensors"].items() if t["into"]}
    if set(recorded) != set(tensors):
        differ = sorted(set(recorded) ^ set(tensors))
        return [f"the manifest lists other tensors than the port: {', '.join(differ[:5])}"]
    nbytes = sum(int(np.prod(t["shape"])) * DTYPES[t["dtype"]].itemsize for t in recorded.values())
    progress = Progress("verifying", len(recorded), nbytes, enabled=show)
    mismatches = []
    for name, tensor in tensors.items():
        if not _checksum_fits(tensor, recorded[name], reader):
            mismatches.append(f"tensor {name}: its SHA-256 is not that of the source")
        progress.add(1, int(np.prod(tensor.shape)) * DTYPES[recorded[name]["dtype"]].itemsize)
    progress.finish()
    return mismatches


def _checksum_fits(tensor: FileTensor, record: Mapping[str, Any], reader: FolderReader) -> bool:
    """Compare with the checksum of the source, or of each part as it was after a cast."""
    into = {(i["param"], lead_of(i)): i.get("stored_sha256") for i in record["into"]}
    if not any(into.values()):
        return _sha256(tensor.blocks(reader)) == record["sha256"]
    return all(
        stored is None or _sha256(values for _, values in blocks(part, reader)) == stored
        for part in tensor.parts
        for stored in [into[part.rule.param, part.lead]]
    )


def _sha256(values: Iterable[np.ndarray]) -> str:
    digest = hashlib.sha256()
    for block in values:
        digest.update(np.ascontiguousarray(block).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def describe(result: Mapping[str, Any]) -> str:
    """The result as text."""
    lines = [
        f"{result['tensors']} tensors compared with the {result['against']}: "
        + ("all equal" if not result["mismatches"] else f"{len(result['mismatches'])} mismatches")
    ]
    lines += [f"  {sentence}" for sentence in result["mismatches"]]
    logits = result["logits"]
    if not logits["compared"]:
        lines.append(f"logits not compared: {logits['why']}")
    else:
        for part in ("text", "image"):
            lines.append(f"logits ({part}): {logits[part]}")
    return "\n".join(lines)
