"""Write a checkpoint as a Hugging Face folder: same names, same bits."""

import contextlib
import dataclasses
import json
import math
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from model_ports.configs import read_json
from model_ports.convert.filetensors import FileTensor, FolderReader, Reader, TreeReader
from model_ports.convert.filetensors import file_tensors as tensors_of
from model_ports.convert.headers import CODES, DTYPES, INDEX, fsync
from model_ports.convert.manifest import lead_of
from model_ports.convert.pieces import cast
from model_ports.convert.plan import settled_config
from model_ports.convert.progress import Progress
from model_ports.convert.source import PARAMS, PARTIAL, is_converted, side_files
from model_ports.convert.store import check_chunks, read_manifest
from model_ports.errors import UserError
from model_ports.port import Port
from model_ports.registry import port_for

_MARKER = ".vrh-export"
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


@dataclasses.dataclass(frozen=True)
class Entry:
    """A tensor to be written; ``values`` yields it in order, in any float dtype."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    values: Callable[[], Iterable[np.ndarray]]

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return math.prod(self.shape) * self.dtype.itemsize


def parse_size(text: str) -> int:
    """Bytes of ``5GB``, ``500MB``, ``1GiB`` or a plain number."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    known = match is not None and match[2].upper() in _UNITS
    size = int(float(match[1]) * _UNITS[match[2].upper()]) if match and known else 0
    if size < 1:
        raise UserError(f"size {text!r} is not understood; write for instance 5GB or 500MB")
    return size


def export_folder(
    converted: Path,
    out: Path,
    *,
    layout: str | None = None,
    max_shard: int = 5 * 10**9,
    port: Port | None = None,
    show: bool = False,
) -> dict[str, Any]:
    """Export a converted folder.

    Args:
        layout: name of an on-disk layout; None is the source's own, and only that one repeats
            the source exactly (with its tied copies). config.json stays the source's.
        max_shard: bytes of tensors per file.

    Returns:
        What was written: folder, layout, files, tensors, bytes, and the names that the source
        had but that have no effect on the model and are not written.
    """
    if not is_converted(converted):
        raise UserError(f"{converted} is not a converted checkpoint (`vrh convert` makes one)")
    manifest = read_manifest(converted)
    check_chunks(converted)
    raw = read_json(converted / "config.json")
    port = port or port_for(raw)
    names: Mapping[str, Any] = manifest["tensors"]
    config = settled_config(port, raw, tuple(names))
    chosen = layout or manifest["layout"]
    tensors = tensors_of(port, config, chosen)
    reader = FolderReader(converted / PARAMS)
    kept = _source_dtypes(manifest)
    entries = [
        _entry(name, tensor, reader, _exported_dtype(tensor, reader, kept))
        for name, tensor in tensors.items()
    ]
    if chosen == manifest["layout"]:
        entries += _copies(port, config, chosen, manifest, {e.name: e for e in entries})
        order = {name: at for at, name in enumerate(names)}
        entries.sort(key=lambda entry: order[entry.name])
    if manifest["dtype"]:
        raw = _with_dtype(raw, manifest["dtype"])
    with new_folder(out) as partial:
        files = write_safetensors(partial, entries, max_shard=max_shard, show=show)
        _copy_side_files(converted, partial, raw, cast=bool(manifest["dtype"]))
    written = {entry.name for entry in entries}
    return {
        "out": str(out),
        "layout": chosen,
        "files": files,
        "tensors": len(entries),
        "bytes": sum(entry.nbytes for entry in entries),
        "not_written": [n for n, t in names.items() if t.get("use") == "skip" and n not in written],
    }


def export_params(
    port: Port,
    raw_config: Mapping[str, Any],
    params: Mapping[str, Any],
    out: Path,
    *,
    config: Any = None,
    layout: str | None = None,
    side_folder: Path | None = None,
    max_shard: int = 5 * 10**9,
) -> None:
    """Write parameters in memory (for instance freshly trained ones) as a Hugging Face folder.

    Args:
        raw_config: becomes config.json.
        params: nested dict of arrays, as in ``Model.params``; dtypes are kept.
        config: the port's config; None reads it from ``raw_config``. Give ``Model.config`` where
            the file decides something (``Port.settle``).
        layout: on-disk layout; the port's first by default.
        side_folder: its tokenizer, template and processor files are copied along.
    """
    config = config or port.read_config(raw_config)
    with new_folder(out) as partial:
        write_params(partial, port, config, params, layout=layout, max_shard=max_shard)
        (partial / "config.json").write_text(json.dumps(raw_config, indent=2) + "\n")
        for path in side_files(side_folder) if side_folder else []:
            shutil.copyfile(path, partial / path.name)


def write_params(
    folder: Path,
    port: Port,
    config: Any,
    params: Mapping[str, Any],
    *,
    layout: str | None = None,
    max_shard: int = 5 * 10**9,
) -> None:
    """Write parameters in memory as safetensors into a folder; arguments as in
    ``export_params``.

    Raises:
        UserError: parameters of another config, before anything is written.
    """
    reader = TreeReader(params)
    tensors = tensors_of(port, config, layout or next(iter(port.layouts(config))))
    lacking = sorted(
        {part.rule.param for t in tensors.values() for part in t.parts} ^ set(reader.flat)
    )
    if lacking:
        raise UserError(f"the parameters are not those of the config: {', '.join(lacking[:5])}")
    entries = [
        _entry(name, tensor, reader, reader.dtype(tensor.parts[0].rule.param))
        for name, tensor in tensors.items()
    ]
    write_safetensors(folder, entries, max_shard=max_shard)


def _entry(name: str, tensor: FileTensor, reader: Reader, dtype: np.dtype) -> Entry:
    return Entry(name, dtype, tensor.shape, lambda: tensor.blocks(reader))


def _source_dtypes(manifest: Mapping[str, Any]) -> dict[tuple[str, tuple[int, ...]], np.dtype]:
    """(parameter, index on its stacked axes) -> dtype of the source tensor; empty after a cast
    on request."""
    if manifest["dtype"]:
        return {}
    return {
        (into["param"], lead_of(into)): DTYPES[tensor["dtype"]]
        for tensor in manifest["tensors"].values()
        for into in tensor["into"]
    }


def _exported_dtype(
    tensor: FileTensor, reader: Reader, kept: Mapping[tuple[str, tuple[int, ...]], np.dtype]
) -> np.dtype:
    """Layers of mixed dtypes are kept in the widest one; each goes back to its own."""
    part = tensor.parts[0]
    path = part.rule.param
    return kept.get((path, part.lead)) or reader.dtype(path)


def _copies(
    port: Port,
    config: Any,
    layout: str,
    manifest: Mapping[str, Any],
    entries: Mapping[str, Entry],
) -> list[Entry]:
    """Tied copies that the source file had."""
    rules = port.layouts(config)[layout]
    filled = {rule.param: rule.key for rule in rules if rule.use == "fill"}
    return [
        dataclasses.replace(entries[filled[rule.param]], name=rule.key)
        for rule in rules
        if rule.use == "copy" and manifest["tensors"].get(rule.key, {}).get("use") == "copy"
    ]


def _with_dtype(raw: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """config.json with the dtype that the weights now have."""
    known = [key for key in ("dtype", "torch_dtype") if key in raw]
    return {**raw, **dict.fromkeys(known, dtype)}


def _copy_side_files(converted: Path, partial: Path, raw: Mapping[str, Any], *, cast: bool) -> None:
    if cast:
        (partial / "config.json").write_text(json.dumps(raw, indent=2) + "\n")
    else:
        shutil.copyfile(converted / "config.json", partial / "config.json")
    for path in side_files(converted):
        shutil.copyfile(path, partial / path.name)


@contextlib.contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Work in ``OUT.partial``; rename it to ``out`` if all went well, remove it if not."""
    if out.exists() or out.is_symlink():
        raise UserError(f"{out} exists; choose another folder or remove it")
    partial = out.with_name(out.name + PARTIAL)
    if partial.exists():
        if not (partial / _MARKER).exists():
            raise UserError(f"{partial} is in the way; remove it or choose another folder")
        shutil.rmtree(partial)
    partial.mkdir(parents=True)
    (partial / _MARKER).touch()
    try:
        yield partial
        for path in (*partial.iterdir(), partial):
            fsync(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    partial.rename(out)
    (out / _MARKER).unlink()


def write_safetensors(
    folder: Path, entries: Sequence[Entry], *, max_shard: int, show: bool = False
) -> list[str]:
    """Write tensors to one file, or to numbered files with an index; returns the file names."""
    total = sum(entry.nbytes for entry in entries)
    free = shutil.disk_usage(folder).free
    if total * 1.01 > free:
        raise UserError(
            f"{folder.parent} has {free / 1e9:.2f} GB free, the export needs {total / 1e9:.2f} GB"
        )
    shards: list[list[Entry]] = [[]]
    for entry in entries:
        if shards[-1] and sum(e.nbytes for e in shards[-1]) + entry.nbytes > max_shard:
            shards.append([])
        shards[-1].append(entry)
    count = len(shards)
    names = [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]
    if count == 1:
        names = ["model.safetensors"]
    progress = Progress("exporting", len(entries), total, enabled=show)
    for name, shard in zip(names, shards, strict=True):
        with (folder / name).open("wb") as file:
            _write_file(file, shard, progress)
    if count > 1:
        weight_map = {
            entry.name: name for name, shard in zip(names, shards, strict=True) for entry in shard
        }
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")
    progress.finish()
    return names


def _write_file(file: BinaryIO, entries: Sequence[Entry], progress: Progress) -> None:
    # Wide dtypes first keeps every tensor aligned, as the reference implementation does.
    ordered = sorted(entries, key=lambda entry: -entry.dtype.itemsize)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for entry in ordered:
        header[entry.name] = {
            "dtype": CODES[entry.dtype],
            "shape": list(entry.shape),
            "data_offsets": [offset, offset + entry.nbytes],
        }
        offset += entry.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little"))
    file.write(text)
    for entry in ordered:
        written = 0
        for values in entry.values():
            data = np.ascontiguousarray(cast(values, entry.dtype, entry.name))
            written += file.write(data.reshape(-1).view(np.uint8).data)
            progress.add(0, data.nbytes)
        if written != entry.nbytes:
            raise RuntimeError(f"{entry.name}: {written} bytes written, {entry.nbytes} expected")
        progress.add(1, 0)
