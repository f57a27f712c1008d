"""Headers of a folder of safetensors files, checked before anything is read from them.

A file is: 8 bytes little-endian header length, a JSON header (name -> dtype, shape, byte
range), the data. Format: https://github.com/huggingface/safetensors#format
"""

import dataclasses
import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from model_ports.errors import UserError

INDEX = "model.safetensors.index.json"
# The reference implementation refuses larger headers, too.
_MAX_HEADER = 100_000_000

DTYPES: Mapping[str, np.dtype] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "U16": np.dtype(np.uint16),
    "I16": np.dtype(np.int16),
    "U32": np.dtype(np.uint32),
    "I32": np.dtype(np.int32),
    "U64": np.dtype(np.uint64),
    "I64": np.dtype(np.int64),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
}
CODES: Mapping[np.dtype, str] = {dtype: code for code, dtype in DTYPES.items()}

_AGAIN = "Copy or download this file again"
_SAFE = (
    "Only safetensors files are read: unpickling a file runs whatever code is in it. On a "
    "machine (or in a sandbox) where that risk is acceptable, load the checkpoint with "
    "transformers and write it back with model.save_pretrained(FOLDER), which writes "
    "safetensors; or take a revision of the checkpoint that has safetensors files"
)
_UNSAFE = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_OTHER = (".gguf", ".h5", ".msgpack", ".npz", ".onnx")


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """Where one tensor lies.

    Attributes:
        start, stop: byte range in the file (absolute).
    """

    name: str
    path: Path
    dtype: np.dtype
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return self.stop - self.start

    def read(self, rows: slice | None = None, columns: slice | None = None) -> np.ndarray:
        """The tensor, or a part of it seen as [shape[0], rest]; reads only those bytes.

        Args:
            rows: of axis 0, step 1; the result keeps the other axes.
            columns: of the flattened other axes; the result is [rows, columns].
        """
        if rows is None and columns is None:
            return self._bytes(self.start, self.nbytes).view(self.dtype).reshape(self.shape)
        count, width = self.shape[0], math.prod(self.shape[1:])
        first, last, _ = (rows or slice(None)).indices(count)
        if columns is None or columns == slice(0, width):
            stride = width * self.dtype.itemsize
            data = self._bytes(self.start + first * stride, (last - first) * stride)
            tail = self.shape[1:] if columns is None else (width,)
            return data.view(self.dtype).reshape(last - first, *tail)
        # Strided: a private mapping, dropped at once, touches only the pages that are needed.
        mapped = np.memmap(self.path, np.uint8, "r", self.start, (self.nbytes,))
        return np.array(mapped.view(self.dtype).reshape(count, width)[first:last, columns])

    def _bytes(self, start: int, count: int) -> np.ndarray:
        out = np.empty(count, np.uint8)
        view, done = memoryview(out.data), 0
        with self.path.open("rb", buffering=0) as file:
            file.seek(start)
            while done < count:
                got = file.readinto(view[done:])
                if not got:
                    raise UserError(f"{self.path} became shorter while it was read. {_AGAIN}")
                done += got
        return out


@dataclasses.dataclass(frozen=True)
class Headers:
    """All tensors of a folder.

    Attributes:
        files: the safetensors files, in order.
        tensors: name -> where it lies.
    """

    folder: Path
    files: tuple[Path, ...]
    tensors: Mapping[str, TensorInfo]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.nbytes for t in self.tensors.values())

    @property
    def largest(self) -> int:
        """Bytes of the largest tensor."""
        return max((t.nbytes for t in self.tensors.values()), default=0)


def read_headers(folder: Path) -> Headers:
    """Read and check the headers of all safetensors files of a checkpoint folder.

    Raises:
        UserError: no safetensors; missing, truncated or damaged file; a tensor that is twice
            there, or whose bytes overlap another's; an index that does not match the files.
    """
    index = _find_index(folder)
    files = _indexed_files(folder, index) if index else _plain_files(folder)
    tensors: dict[str, TensorInfo] = {}
    for file in files:
        for name, info in read_header(file).items():
            if name in tensors:
                raise UserError(
                    f"tensor {name!r} is in two files, {tensors[name].path.name} and {file.name} "
                    f"of {folder}; remove the file that does not belong to this checkpoint"
                )
            tensors[name] = info
    if index:
        _check_index(folder, index, tensors)
    if not tensors:
        raise UserError(f"{folder}: the safetensors files hold no tensor")
    return Headers(folder, tuple(files), tensors)


def _find_index(folder: Path) -> dict[str, str] | None:
    """The ``weight_map`` (tensor -> file) of the folder's index, if there is one."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give the folder of a checkpoint")
    found = sorted(folder.glob("*.safetensors.index.json"))
    if not found:
        return None
    if len(found) > 1:
        names = ", ".join(p.name for p in found)
        raise UserError(f"{folder} holds several indexes ({names}); keep the one that is meant")
    if (folder / "model.safetensors").exists():
        raise UserError(
            f"{folder} holds both model.safetensors and {found[0].name}, two copies or two "
            "checkpoints; remove the one that is not meant"
        )
    try:
        weight_map = json.loads(found[0].read_text())["weight_map"]
        pairs = {str(k): str(v) for k, v in weight_map.items()}
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise UserError(
            f"{found[0]} is not a safetensors index (a JSON object with 'weight_map'): {error}. "
            f"{_AGAIN}"
        ) from error
    for name in set(pairs.values()):
        if name in ("", ".", "..") or "/" in name or "\\" in name:
            raise UserError(f"{found[0]} names the file {name!r}; only files beside it are read")
    return pairs


def _indexed_files(folder: Path, index: Mapping[str, str]) -> list[Path]:
    names = sorted(set(index.values()))
    for name in names:
        if not (folder / name).is_file():
            first = next(tensor for tensor, file in index.items() if file == name)
            raise UserError(
                f"{folder}: file {name} is missing; the index says that it holds "
                f"{sum(f == name for f in index.values())} tensors ({first}, ...). Download it"
            )
        if not name.endswith(".safetensors"):
            raise UserError(f"{folder}: the index names {name}, which is no safetensors. {_SAFE}")
    return [folder / name for name in names]


def _plain_files(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.safetensors"))
    if (folder / "adapter_config.json").exists():
        raise UserError(
            f"{folder} holds an adapter (adapter_config.json), not a model; merge it into its "
            "base model first (peft: merge_and_unload, then save_pretrained)"
        )
    if not files:
        _refuse_other_formats(folder)
    for file in files:
        match = re.fullmatch(r"(.*)-(\d+)-of-(\d+)\.safetensors", file.name)
        if not match:
            continue
        stem, width, count = match[1], len(match[2]), int(match[3])
        for number in range(1, count + 1):
            name = f"{stem}-{number:0{width}d}-of-{match[3]}.safetensors"
            if not (folder / name).is_file():
                raise UserError(
                    f"{folder}: file {name} is missing ({file.name} is one of {count}). Download it"
                )
    return files


def _refuse_other_formats(folder: Path) -> None:
    names = sorted(p.name for p in folder.iterdir())
    unsafe = [n for n in names if n.endswith(_UNSAFE)]
    if unsafe:
        raise UserError(f"{folder} holds {unsafe[0]} but no safetensors. {_SAFE}")
    other = [n for n in names if n.endswith(_OTHER)]
    if other:
        raise UserError(
            f"{folder} holds {other[0]} but no safetensors, the only format that is read; take "
            "the checkpoint's original repository, or convert it to a Hugging Face folder first"
        )
    raise UserError(
        f"{folder} holds no *.safetensors file; give the folder with config.json and the weights"
    )


def _check_index(folder: Path, index: Mapping[str, str], tensors: Mapping[str, TensorInfo]) -> None:
    for name, file in index.items():
        info = tensors.get(name)
        if info is None or info.path.name != file:
            where = f"; it is in {info.path.name}" if info else ""
            raise UserError(
                f"{folder}: the index says that tensor {name!r} is in {file}, but that file does "
                f"not hold it{where}. Index and files are of different versions; download all"
            )
    for name, info in tensors.items():
        if name not in index:
            raise UserError(
                f"{folder}: tensor {name!r} of {info.path.name} is not in the index. Index and "
                "files are of different versions; download all"
            )


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Tensors of one file, in the order of their bytes; checks every promise of the header."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        _refuse_foreign(path, start)
        length = int.from_bytes(start, "little")
        if length > _MAX_HEADER or size < 8 + length:
            raise UserError(
                f"{path} is truncated or no safetensors file: it has {size} bytes, its header "
                f"alone would need {8 + length}. {_AGAIN}"
            )
        text = file.read(length)
    try:
        header = json.loads(text, object_pairs_hook=lambda pairs: _unique(path, pairs))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"{path} has a damaged header ({error}). {_AGAIN}") from error
    if not isinstance(header, dict):
        raise UserError(f"{path} has a damaged header (no JSON object). {_AGAIN}")
    header.pop("__metadata__", None)
    infos = [_entry(path, name, entry, 8 + length) for name, entry in header.items()]
    infos.sort(key=lambda info: (info.start, info.stop))
    _check_ranges(path, infos, 8 + length, size)
    return {info.name: info for info in infos}


def _refuse_foreign(path: Path, start: bytes) -> None:
    """Name files that only pretend to be safetensors."""
    if start.startswith(b"version "):
        raise UserError(f"{path} is a Git LFS pointer, not the weights; run `git lfs pull`")
    if start[:2] in (b"PK", b"\x80\x02", b"\x80\x04"):
        raise UserError(f"{path} is a renamed pickle file. {_SAFE}")
    if start.lstrip()[:1] == b"<":
        raise UserError(f"{path} is a web page, not the weights (failed download?). {_AGAIN}")
    if len(start) < 8:
        raise UserError(f"{path} is truncated: it has {len(start)} bytes. {_AGAIN}")


def _unique(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise UserError(f"{path}: the header lists {double!r} twice. {_AGAIN}")
    return out


def _entry(path: Path, name: str, entry: Any, base: int) -> TensorInfo:
    try:
        code, shape, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
        numbers = [*shape, start, stop]
    except (TypeError, KeyError, ValueError) as error:
        raise UserError(f"{path}: damaged header entry of tensor {name!r}. {_AGAIN}") from error
    if code not in DTYPES:
        raise UserError(
            f"{path}: tensor {name!r} has dtype {code!r}; known are {', '.join(DTYPES)}. A "
            "quantised checkpoint cannot be read; take the original one"
        )
    if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in numbers):
        raise UserError(f"{path}: tensor {name!r} has a damaged shape or byte range. {_AGAIN}")
    expected = math.prod(shape) * DTYPES[code].itemsize
    if stop - start != expected:
        raise UserError(
            f"{path}: tensor {name!r} has {stop - start} bytes at [{start}, {stop}), but {code} "
            f"{shape} needs {expected}. {_AGAIN}"
        )
    return TensorInfo(name, path, DTYPES[code], tuple(shape), base + start, base + stop)


def _check_ranges(path: Path, infos: list[TensorInfo], base: int, size: int) -> None:
    """Tensors must cover the data section exactly: no overlap, no hole, nothing beyond it."""
    end, before = base, "the header"
    for info in infos:
        if info.stop > size:
            raise UserError(
                f"{path} is truncated: it has {size} bytes, but tensor {info.name!r} lies at "
                f"bytes [{info.start}, {info.stop}). {_AGAIN}"
            )
        if info.start != end:
            what = "overlaps" if info.start < end else "leaves a hole after"
            raise UserError(f"{path}: tensor {info.name!r} {what} {before}. {_AGAIN}")
        end, before = info.stop, repr(info.name)
    if end != size:
        raise UserError(f"{path} has {size - end} bytes after its last tensor. {_AGAIN}")


def fsync(path: Path) -> None:
    """Flush a file (or the names in a folder) to disk, so that a power cut keeps it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
