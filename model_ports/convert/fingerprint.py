"""A cheap identity of a checkpoint, for the keys of result rows."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from model_ports.convert.headers import CODES, Headers, TensorInfo
from model_ports.convert.source import side_files

# Small checkpoints are hashed whole; of larger ones, this much at three places of each tensor.
_WHOLE = 64 << 20
_SAMPLE = 4096


def weights_digest(headers: Headers) -> str:
    """Hash over name, dtype, shape and (sampled) bytes of every tensor.

    Independent of how the tensors are split into files.
    """
    whole = headers.nbytes <= _WHOLE
    digest = hashlib.sha256()
    for name in sorted(headers.tensors):
        info = headers.tensors[name]
        digest.update(json.dumps([name, CODES[info.dtype], list(info.shape)]).encode())
        for start, stop in _spans(info, whole=whole):
            part = TensorInfo(name, info.path, np.dtype(np.uint8), (stop - start,), start, stop)
            digest.update(part.read().data)
    return digest.hexdigest()


def _spans(info: TensorInfo, *, whole: bool) -> list[tuple[int, int]]:
    if whole or info.nbytes <= 3 * _SAMPLE:
        return [(info.start, info.stop)]
    middle = info.start + info.nbytes // 2
    starts = (info.start, middle, info.stop - _SAMPLE)
    return [(start, start + _SAMPLE) for start in starts]


def fingerprint(
    folder: Path, raw_config: Mapping[str, Any], weights: str, casts: Sequence[str | None]
) -> str:
    """16 hex digits over config, tokenizer and processor files, weights and casts.

    A checkpoint has the same fingerprint before and after conversion.

    Args:
        weights: of ``weights_digest``.
        casts: dtypes that the weights were cast to, in order; None entries do not count.
    """
    digest = hashlib.sha256(json.dumps(raw_config, sort_keys=True).encode())
    for path in side_files(folder):
        if path.suffix in (".json", ".jinja", ".txt", ".model"):
            digest.update(path.name.encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    digest.update(weights.encode())
    digest.update(json.dumps([name for name in casts if name]).encode())
    return digest.hexdigest()[:16]
