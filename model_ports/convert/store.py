"""The on-disk form of converted parameters: an Orbax checkpoint, written part by part.

Orbax saves arrays that exist in memory; a stacked parameter is many times larger than the
tensors that it is made of. So the arrays (zarr, one folder per parameter) are written here
chunk by chunk, and the metadata that Orbax puts beside them last: until then plain Orbax does
not open the folder. Chunks are cut by layer and by the shards of the sharding table, so that a
restore reads whole chunks of its own shards only.

Format: what ``orbax.checkpoint.PyTreeCheckpointHandler(use_ocdbt=False)`` writes.
"""

import itertools
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import tensorstore as ts
from jax.sharding import AbstractMesh

from model_ports.configs import read_json
from model_ports.convert.source import MANIFEST, PARAMS
from model_ports.errors import UserError
from model_ports.sharding import MESH_AXES, param_spec

FORMAT = 1
_MAX_CHUNK = 128 << 20
# Below this a parameter is one chunk: many tiny files cost more than a little over-reading.
_SMALL = 8 << 20
# Chunks are not cut for shards below this size.
_MIN_CHUNK = 1 << 20
_DICT_KEY = 2  # Orbax's key type of dictionary entries

Stored = dict[str, tuple[tuple[int, ...], np.dtype]]


def chunk_shape(
    path: str, shape: tuple[int, ...], dtype: np.dtype, *, stacked: int, shards: int
) -> tuple[int, ...]:
    """Chunk of a parameter: one layer, expert and shard, at most 128 MiB where an axis is free.

    Parameters of up to 8 MiB are one chunk, and chunks of less than 1 MiB are not made.

    Args:
        stacked: leading axes that are layers and experts.
        shards: size of the ``tensor`` mesh axis that the checkpoint is cut for.
    """
    chunk = list(shape)
    if math.prod(shape) * dtype.itemsize <= _SMALL:
        return shape
    chunk[:stacked] = [1] * stacked
    spec = param_spec(path, shape, AbstractMesh((1, shards), MESH_AXES))
    cut = {axis for axis, name in enumerate(spec) if name is not None}
    if math.prod(chunk) * dtype.itemsize < shards * _MIN_CHUNK:
        cut = set()
    for axis in cut:
        chunk[axis] //= shards
    free = [axis for axis in range(stacked, len(chunk)) if axis not in cut]
    while free and math.prod(chunk) * dtype.itemsize > _MAX_CHUNK:
        axis = max(free, key=lambda a: chunk[a])
        chunk[axis] = -(-chunk[axis] // 2)
    return tuple(chunk)


def chunk_slices(shape: tuple[int, ...], chunk: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """All chunks of an array, as slices."""
    axes = [
        [slice(first, min(first + size, n)) for first in range(0, n, size)]
        for n, size in zip(shape, chunk, strict=True)
    ]
    return itertools.product(*axes)


def create_array(
    params: Path, path: str, shape: tuple[int, ...], dtype: np.dtype, chunk: tuple[int, ...]
) -> ts.TensorStore:
    """A new array for a parameter, replacing an unfinished one."""
    metadata = {
        "shape": list(shape),
        "chunks": list(chunk),
        "dtype": _zarr_dtype(dtype),
        "compressor": None,
        "fill_value": None,
        "filters": None,
        "order": "C",
        "zarr_format": 2,
        "dimension_separator": ".",
    }
    spec = {**_spec(params, path), "metadata": metadata, "create": True, "delete_existing": True}
    return ts.open(spec).result()


def open_array(params: Path, path: str) -> ts.TensorStore:
    """An array for reading."""
    try:
        return ts.open(_spec(params, path), open=True, read=True).result()
    except ValueError as error:
        raise UserError(f"{params}: parameter {path} cannot be opened ({error})") from error


def _spec(params: Path, path: str) -> dict[str, Any]:
    folder = str((params / _name(path)).absolute()) + "/"
    return {
        "driver": "zarr",
        "kvstore": {"driver": "file", "path": folder},
        # Nothing is read twice, and caching would defeat the memory bound.
        "context": {"cache_pool": {"total_bytes_limit": 0}},
        "recheck_cached_data": False,
    }


def _name(path: str) -> str:
    return path.replace("/", ".")


def _zarr_dtype(dtype: np.dtype) -> str:
    return "bfloat16" if dtype == np.dtype(ml_dtypes.bfloat16) else dtype.str


def write_orbax_metadata(params: Path, stored: Stored) -> None:
    """Everything beside the arrays that plain Orbax needs; makes the folder a checkpoint."""
    tree = {}
    for path, (shape, _) in stored.items():
        keys = path.split("/")
        tree[str(tuple(keys))] = {
            "key_metadata": [{"key": key, "key_type": _DICT_KEY} for key in keys],
            "value_metadata": {
                # Without a target, Orbax then restores to the host instead of asking for a
                # saved sharding; with one, to whatever sharding the target has.
                "value_type": "np.ndarray",
                "skip_deserialize": False,
                "write_shape": list(shape),
            },
        }
    now = time.time_ns()
    files: dict[str, Mapping[str, Any]] = {
        "_METADATA": {
            "tree_metadata": tree,
            "use_ocdbt": False,
            "use_zarr3": False,
            "store_array_data_equal_to_fill_value": True,
            "custom_metadata": None,
        },
        "_CHECKPOINT_METADATA": {
            "item_handlers": "orbax.checkpoint._src.handlers.pytree_checkpoint_handler."
            "PyTreeCheckpointHandler",
            "metrics": {},
            "performance_metrics": {},
            "init_timestamp_nsecs": now,
            "commit_timestamp_nsecs": now,
            "custom_metadata": {},
        },
    }
    for name, content in files.items():
        (params / name).write_text(json.dumps(content))


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a converted folder."""
    manifest = read_json(folder / MANIFEST)
    if manifest.get("format") != FORMAT:
        raise UserError(
            f"{folder}/{MANIFEST} has format {manifest.get('format')!r}, this version reads "
            f"{FORMAT}; convert the source again"
        )
    return manifest


def stored_arrays(folder: Path) -> Stored:
    """Path -> (shape, dtype) of every parameter of a converted folder, sorted by path."""
    return {path: (shape, dtype) for path, (shape, dtype, _) in _arrays(folder).items()}


def chunk_faults(folder: Path) -> list[str]:
    """Sentences about chunk files that are missing or not whole, of an incomplete copy for
    instance. zarr itself reads a missing chunk as zeros."""
    faults = []
    for path, (shape, dtype, chunk) in _arrays(folder).items():
        array = folder / PARAMS / _name(path)
        nbytes = math.prod(chunk) * dtype.itemsize
        sizes = {entry.name: entry.stat().st_size for entry in os.scandir(array)}
        counts = [range(-(-n // size)) for n, size in zip(shape, chunk, strict=True)]
        for index in itertools.product(*counts):
            name = ".".join(map(str, index)) or "0"
            if sizes.get(name) != nbytes:
                found = f"{sizes[name]} of {nbytes} bytes" if name in sizes else "missing"
                file = f"{PARAMS}/{array.name}/{name}"
                faults.append(f"parameter {path}: chunk file {file} is {found}")
    return faults


def check_chunks(folder: Path) -> None:
    """Refuse a converted folder of which a part is missing.

    Raises:
        UserError: naming the first file.
    """
    faults = chunk_faults(folder)
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise UserError(
            f"{folder} is not whole: {faults[0]}{more}; copy the folder again, or convert again"
        )


def _arrays(folder: Path) -> dict[str, tuple[tuple[int, ...], np.dtype, tuple[int, ...]]]:
    """Path -> (shape, dtype, chunk shape), sorted by path."""
    params = folder / PARAMS
    try:
        tree = read_json(params / "_METADATA")["tree_metadata"]
        paths = sorted("/".join(k["key"] for k in leaf["key_metadata"]) for leaf in tree.values())
        arrays = {}
        for path in paths:
            zarray = read_json(params / _name(path) / ".zarray")
            kind = zarray["dtype"]
            dtype = np.dtype(ml_dtypes.bfloat16) if kind == "bfloat16" else np.dtype(kind)
            arrays[path] = (tuple(zarray["shape"]), dtype, tuple(zarray["chunks"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{params}: its metadata are damaged ({error!r}); copy the folder again, or convert "
            "again"
        ) from error
    return arrays
