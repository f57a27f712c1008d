"""Writing one parameter, of which one source tensor and one chunk are in memory at a time."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from model_ports.convert.pieces import Piece, Target, cast
from model_ports.convert.progress import Progress
from model_ports.convert.rules import to_param
from model_ports.convert.store import chunk_shape, chunk_slices, create_array

_HASH_BYTES = 32 << 20
_IN_FLIGHT = 64 << 20  # bytes of chunks that are being written while the next is prepared


def write_target(
    params: Path, target: Target, shards: int, progress: Progress
) -> dict[str, str | None]:
    """Write one parameter piece by piece.

    Args:
        params: folder of all arrays.
        target: the parameter and the file tensors that fill it.
        shards: tensor-parallel size that chunks are cut for.
        progress: told of the bytes written.

    Returns:
        Tensor name -> SHA-256 of what was stored, or None if it was not cast.

    Raises:
        RangeError: a number does not fit the dtype.
    """
    chunk = chunk_shape(
        target.path, target.shape, target.dtype, stacked=target.stacked, shards=shards
    )
    store = create_array(params, target.path, target.shape, target.dtype, chunk)
    whole = np.empty(target.shape, target.dtype) if chunk == target.shape else None
    stored: dict[str, str | None] = {}
    pending: list[Any] = []
    waiting = 0
    for piece in target.pieces:
        lead = piece.place
        block = piece.read_block()
        stored[piece.info.name] = _cast_checksum(block, target.dtype, piece)
        values = to_param(block, piece.rule.layout, piece.shape)
        if whole is not None:
            whole[lead or ...] = cast(values, target.dtype, piece.info.name)
            continue
        for index in chunk_slices(piece.shape, chunk[len(lead) :]):
            part = np.ascontiguousarray(cast(values[index], target.dtype, piece.info.name))
            pending.append(_write(store, (*lead, *index), part[(None,) * len(lead)]))
            waiting += part.nbytes
            if waiting > _IN_FLIGHT:
                _wait(pending)
                waiting = 0
            progress.add(0, part.nbytes)
    if whole is not None:
        pending.append(_write(store, ..., whole))
        progress.add(0, whole.nbytes)
    _wait(pending)
    return stored


def _write(store: Any, index: Any, data: np.ndarray) -> Any:
    """Start to write; the future is done when the data is on disk."""
    # The caller does not touch the data again, so no copy of it is needed.
    return store[index].write(data, can_reference_source_data_indefinitely=True)


def _wait(pending: list[Any]) -> None:
    for future in pending:
        future.result()
    pending.clear()


def _cast_checksum(block: np.ndarray, dtype: np.dtype, piece: Piece) -> str | None:
    """SHA-256 of the block in the file's order after the cast; None if nothing is cast."""
    if block.dtype == dtype:
        return None
    digest = hashlib.sha256()
    flat = block.reshape(-1)
    step = _HASH_BYTES // dtype.itemsize
    for first in range(0, flat.size, step):
        values = cast(flat[first : first + step], dtype, piece.info.name)
        digest.update(values.view(np.uint8).data)
    return digest.hexdigest()
