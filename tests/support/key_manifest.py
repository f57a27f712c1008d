"""Committed lists of a published checkpoint's tensors, and plans made from them alone."""

import math
import re
from pathlib import Path

import ml_dtypes
import numpy as np

from model_ports.convert.headers import Headers, TensorInfo

DATA = Path(__file__).parent.parent / "data"


def read_key_manifest(name: str) -> dict[str, tuple[int, ...]]:
    """Tensor name -> shape, from ``tests/data/key_manifests/NAME.txt``; ``{1-26}`` in a name
    stands for each of these numbers."""
    tensors: dict[str, tuple[int, ...]] = {}
    for line in (DATA / "key_manifests" / f"{name}.txt").read_text().splitlines():
        pattern, sizes = line.split()
        shape = tuple(int(n) for n in sizes.split("x"))
        for key in _names(pattern):
            assert key not in tensors, f"{name}: {key} is listed twice"
            tensors[key] = shape
    return tensors


def _names(pattern: str) -> list[str]:
    run = re.search(r"\{(\d+)-(\d+)\}", pattern)
    if run is None:
        return [pattern]
    numbers = range(int(run[1]), int(run[2]) + 1)
    return [name for n in numbers for name in _names(pattern.replace(run[0], str(n), 1))]


def fake_headers(tensors: dict[str, tuple[int, ...]]) -> Headers:
    """bfloat16 headers as a folder with these tensors would have; there is no data."""
    path = Path("model.safetensors")
    dtype = np.dtype(ml_dtypes.bfloat16)
    infos = {
        name: TensorInfo(name, path, dtype, shape, 0, math.prod(shape) * dtype.itemsize)
        for name, shape in tensors.items()
    }
    return Headers(folder=path.parent, files=(path,), tensors=infos)
