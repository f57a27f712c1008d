"""Committed lists of a published checkpoint's tensors, and plans made from them alone."""

import math
import re
from pathlib import Path

import ml_dtypes
import numpy as np

from model_ports.convert.headers import Headers, TensorInfo

DATA = Path(__file__).parent.parent / "data"


def read_key_manifest(name: str) -> dict[str, tuple[int, ...]]:
    """Tensor name -> shape, from ``tests/data/key_manifests/NAME.txt``."""
    tensors: dict[str, tuple[int, ...]] = {}
    for line in (DATA / "key_manifests" / f"{name}.txt").read_text().splitlines():
        pattern, sizes = line.split()
        shape = tuple(int(n) for n in sizes.split("x"))
        runs = re.search(r"\{0-(\d+)\}", pattern)
        for layer in range(int(runs[1]) + 1 if runs else 1):
            key = pattern.replace(runs[0], str(layer)) if runs else pattern
            assert key not in tensors, f"{name}: {key} is listed twice"
            tensors[key] = shape
    return tensors


def fake_headers(tensors: dict[str, tuple[int, ...]]) -> Headers:
    """bfloat16 headers as a folder with these tensors would have; there is no data."""
    path = Path("model.safetensors")
    dtype = np.dtype(ml_dtypes.bfloat16)
    infos = {
        name: TensorInfo(name, path, dtype, shape, 0, math.prod(shape) * dtype.itemsize)
        for name, shape in tensors.items()
    }
    return Headers(folder=path.parent, files=(path,), tensors=infos)
