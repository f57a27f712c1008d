"""File tensors made from parameters again, block by block: the inverse of a conversion."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from model_ports.convert.match import input_axes, instances
from model_ports.convert.pieces import Index, Part, flatten, linear_inputs
from model_ports.convert.rules import from_param
from model_ports.convert.store import open_array
from model_ports.errors import UserError
from model_ports.port import Port, abstract_model

_BLOCK = 64 << 20


class Reader(Protocol):
    """Reads slices of parameters."""

    def read(self, path: str, index: Index) -> np.ndarray:
        """The slice of a parameter."""
        ...

    def step(self, path: str, axis: int) -> int:
        """How far it reads along an axis at no extra cost."""
        ...

    def dtype(self, path: str) -> np.dtype:
        """In which a parameter is kept."""
        ...


class FolderReader:
    """Parameters of a converted folder."""

    def __init__(self, params: Path):
        self.params = params
        self._arrays: dict[str, Any] = {}

    def _open(self, path: str) -> Any:
        if path not in self._arrays:
            self._arrays[path] = open_array(self.params, path)
        return self._arrays[path]

    def read(self, path: str, index: Index) -> np.ndarray:
        """Read from disk."""
        out: np.ndarray = self._open(path)[index].read().result()
        return out

    def step(self, path: str, axis: int) -> int:
        """The chunk's size."""
        return int(self._open(path).chunk_layout.read_chunk.shape[axis])

    def dtype(self, path: str) -> np.dtype:
        """Of the stored array."""
        return np.dtype(self._open(path).dtype.numpy_dtype)


class TreeReader:
    """Parameters in memory: a nested dict of arrays."""

    def __init__(self, params: Mapping[str, Any]):
        self.flat: Mapping[str, Any] = flatten(params)

    def read(self, path: str, index: Index) -> np.ndarray:
        """Copy to the host."""
        return np.asarray(self.flat[path][index])

    def step(self, path: str, axis: int) -> int:
        """Everything."""
        return int(self.flat[path].shape[axis])

    def dtype(self, path: str) -> np.dtype:
        """Of the array."""
        return np.dtype(self.flat[path].dtype)


def blocks(part: Part, reader: Reader) -> Iterator[tuple[slice, np.ndarray]]:
    """(rows within the part, values in the file's order and shape), in order, bounded memory."""
    path = part.rule.param
    lead = part.place
    linear = part.rule.layout == "linear"
    axis = part.inputs if linear else 0
    if not linear and part.block_shape[:1] != part.shape[:1]:
        whole = reader.read(path, (*lead, *(slice(None) for _ in part.shape)))
        yield slice(None), from_param(whole, "vector", part.block_shape)
        return
    size, height = part.shape[axis], math.prod(part.shape[axis + 1 :]) if linear else 1
    each = math.prod(part.shape) // size * reader.dtype(path).itemsize
    step = reader.step(path, axis + len(lead))
    step = min(size, step * max(1, _BLOCK // max(step * each, 1)))
    for first in range(0, size, step):
        last = min(first + step, size)
        index = [slice(None)] * len(part.shape)
        index[axis] = slice(first, last)
        rows = slice(first * height, last * height)
        shape = (rows.stop - rows.start, *part.block_shape[1:])
        values = reader.read(path, (*lead, *index))
        yield rows, from_param(values, part.rule.layout, shape)


def _whole(part: Part, reader: Reader) -> np.ndarray:
    return np.concatenate([values for _, values in blocks(part, reader)])


@dataclasses.dataclass(frozen=True)
class FileTensor:
    """A tensor of a file and the parts that it is made of, in the order of its rows."""

    name: str
    shape: tuple[int, ...]
    parts: tuple[Part, ...]

    def blocks(self, reader: Reader) -> Iterator[np.ndarray]:
        """Its values in file order."""
        groups = self.parts[0].rule.groups
        if groups > 1:
            # The parts take turns in the file, so the tensor is put together as a whole.
            yield np.concatenate(
                [_whole(part, reader).reshape(groups, -1, *self.shape[1:]) for part in self.parts],
                axis=1,
            ).reshape(self.shape)
            return
        for part in self.parts:
            for _, values in blocks(part, reader):
                yield values


def file_tensors(port: Port, config: Any, layout: str) -> dict[str, FileTensor]:
    """Every tensor that a file of a layout holds, in the order of the port's table."""
    layouts = port.layouts(config)
    if layout not in layouts:
        raise UserError(
            f"port {port.family} has no layout {layout!r}; choose one of {', '.join(layouts)}"
        )
    graphdef, abstract = abstract_model(port, config)
    inputs = linear_inputs(graphdef, abstract)
    shapes = {path: tuple(leaf.shape) for path, leaf in flatten(abstract).items()}
    parts: dict[str, list[Part]] = {}
    for rule in layouts[layout]:
        if rule.use != "fill":
            continue
        for name, lead, shape in instances(rule, shapes[rule.param]):
            part = Part(rule, shape, input_axes(rule, shape, inputs), lead)
            parts.setdefault(name, []).append(part)
    return {name: _in_row_order(name, found) for name, found in parts.items()}


def _in_row_order(name: str, parts: Sequence[Part]) -> FileTensor:
    ordered = tuple(sorted(parts, key=lambda part: part.rule.blocks.start))
    return FileTensor(name, ordered[0].file_shape, ordered)
