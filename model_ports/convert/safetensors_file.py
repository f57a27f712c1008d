"""One safetensors file: its header, checked, and lazy reads of its tensors.

A file is: 8 bytes little-endian header length, a JSON header (name -> dtype, shape, byte
range), the data. Format: https://github.com/huggingface/safetensors#format
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from model_ports.errors import UserError

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

AGAIN = "Copy or download this file again"
SAFE = (
    "Only safetensors files are read: unpickling a file runs whatever code is in it. On a "
    "machine (or in a sandbox) where that risk is acceptable, load the checkpoint with "
    "transformers and write it back with model.save_pretrained(FOLDER), which writes "
    "safetensors; or take a revision of the checkpoint that has safetensors files"
)


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
                    raise UserError(f"{self.path} became shorter while it was read. {AGAIN}")
                done += got
        return out


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Tensors of one file, in the order of their bytes; checks every promise of the header."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = int.from_bytes(start, "little")
        text = file.read(length) if length <= _MAX_HEADER else b""
        if not text.startswith(b"{"):
            _refuse_foreign(path, start)
        if length > _MAX_HEADER or size < 8 + length:
            raise UserError(
                f"{path} is truncated or no safetensors file: it has {size} bytes, its header "
                f"alone would need {8 + length}. {AGAIN}"
            )
    try:
        header = json.loads(text, object_pairs_hook=lambda pairs: _unique(path, pairs))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"{path} has a damaged header ({error}). {AGAIN}") from error
    if not isinstance(header, dict):
        raise UserError(f"{path} has a damaged header (no JSON object). {AGAIN}")
    header.pop("__metadata__", None)
    infos = [_entry(path, name, entry, 8 + length) for name, entry in header.items()]
    infos.sort(key=lambda info: (info.start, info.stop))
    _check_ranges(path, infos, 8 + length, size)
    return {info.name: info for info in infos}


def _refuse_foreign(path: Path, start: bytes) -> None:
    """Name files that only pretend to be safetensors. A good header's length may look alike."""
    if start.startswith(b"version "):
        raise UserError(f"{path} is a Git LFS pointer, not the weights; run `git lfs pull`")
    if start[:2] in (b"PK", b"\x80\x02", b"\x80\x04"):
        raise UserError(f"{path} is a renamed pickle file. {SAFE}")
    if start.lstrip()[:1] == b"<":
        raise UserError(f"{path} is a web page, not the weights (failed download?). {AGAIN}")
    if len(start) < 8:
        raise UserError(f"{path} is truncated: it has {len(start)} bytes. {AGAIN}")


def _unique(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise UserError(f"{path}: the header lists {double!r} twice. {AGAIN}")
    return out


def _entry(path: Path, name: str, entry: Any, base: int) -> TensorInfo:
    try:
        code, shape, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
        numbers = [*shape, start, stop]
    except (TypeError, KeyError, ValueError) as error:
        raise UserError(f"{path}: damaged header entry of tensor {name!r}. {AGAIN}") from error
    if code not in DTYPES:
        raise UserError(
            f"{path}: tensor {name!r} has dtype {code!r}; known are {', '.join(DTYPES)}. A "
            "quantised checkpoint cannot be read; take the original one"
        )
    if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in numbers):
        raise UserError(f"{path}: tensor {name!r} has a damaged shape or byte range. {AGAIN}")
    expected = math.prod(shape) * DTYPES[code].itemsize
    if stop - start != expected:
        raise UserError(
            f"{path}: tensor {name!r} has {stop - start} bytes at [{start}, {stop}), but {code} "
            f"{shape} needs {expected}. {AGAIN}"
        )
    return TensorInfo(name, path, DTYPES[code], tuple(shape), base + start, base + stop)


def _check_ranges(path: Path, infos: list[TensorInfo], base: int, size: int) -> None:
    """Tensors must cover the data section exactly: no overlap, no hole, nothing beyond it."""
    end, before = base, "the header"
    for info in infos:
        if info.stop > size:
            raise UserError(
                f"{path} is truncated: it has {size} bytes, but tensor {info.name!r} lies at "
                f"bytes [{info.start}, {info.stop}). {AGAIN}"
            )
        if info.start != end:
            what = "overlaps" if info.start < end else "leaves a hole after"
            raise UserError(f"{path}: tensor {info.name!r} {what} {before}. {AGAIN}")
        end, before = info.stop, repr(info.name)
    if end != size:
        raise UserError(f"{path} has {size - end} bytes after its last tensor. {AGAIN}")
