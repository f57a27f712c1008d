"""Pieces of parameters: which bytes of a file fill which part of a parameter.

Parameters have their natural axes ([D, N, H] for queries); files hold (out, in) matrices. A
piece maps any slice of a parameter to the rows and columns of its file tensor, so that a
process reads only what its devices hold.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx

from model_ports.convert.headers import TensorInfo
from model_ports.convert.rules import Rule, file_shape, to_param
from model_ports.errors import UserError
from model_ports.nn.linear import Linear

Index = tuple[slice, ...]


class RangeError(UserError):
    """Values do not fit into the requested dtype; no retry with it can succeed."""


@dataclasses.dataclass(frozen=True)
class Part:
    """What one file tensor (or a block of its rows) is in the model.

    Attributes:
        shape: of the parameter without the stacked axes.
        inputs: how many leading axes of ``shape`` are inputs (layout ``linear``).
        lead: index on the stacked axes: (layer,), (layer, expert), or nothing.
    """

    rule: Rule
    shape: tuple[int, ...]
    inputs: int
    lead: tuple[int, ...]

    @property
    def place(self) -> tuple[slice, ...]:
        """``lead`` as slices of length one."""
        return tuple(slice(index, index + 1) for index in self.lead)

    @property
    def file_shape(self) -> tuple[int, ...]:
        """Shape of the whole file tensor."""
        return file_shape(self.rule, self.shape, self.inputs)

    @property
    def block_shape(self) -> tuple[int, ...]:
        """Shape of the file tensor's rows that belong to this part."""
        shape = self.file_shape
        return (shape[0] // self.rule.count * self.rule.span, *shape[1:]) if shape else ()

    def file_rows(self, first: int, last: int) -> list[slice]:
        """Where the file tensor keeps rows ``first`` to ``last`` of this part, in order.

        One slice, or one per run that they touch (``Rule.groups``).
        """
        rule = self.rule
        own = self.block_shape[0] // rule.groups
        block = own // rule.span
        spans = []
        while first < last:
            run, inside = divmod(first, own)
            stop = min(last, (run + 1) * own)
            start = (run * rule.count + rule.blocks.start) * block + inside
            spans.append(slice(start, start + stop - first))
            first = stop
        return spans


@dataclasses.dataclass(frozen=True)
class Piece(Part):
    """A part together with the file tensor that it is read from."""

    info: TensorInfo

    def read(self, index: Index) -> np.ndarray:
        """A slice of the parameter (without the stacked axes), in the file's dtype.

        May be a view with any strides onto freshly read memory.
        """
        spans = [s.indices(n)[:2] for s, n in zip(index, self.shape, strict=True)]
        if self.rule.layout == "linear":
            return self._read_linear(spans)
        if not self.shape or self.block_shape[:1] != self.shape[:1]:
            whole = to_param(self.read_block(), "vector", self.shape)
            return whole[tuple(slice(*span) for span in spans)]
        first, last = spans[0]
        data = self.read_rows(first, last)
        data = data.reshape(last - first, *self.shape[1:])
        return data[(slice(None), *(slice(*span) for span in spans[1:]))]

    def read_block(self) -> np.ndarray:
        """All rows of this piece as they are in the file."""
        return self.read_rows(0, self.block_shape[0]) if self.info.shape else self.info.read()

    def read_rows(self, first: int, last: int, columns: slice | None = None) -> np.ndarray:
        """Rows of this piece in the file's order and shape; ``columns`` as in TensorInfo."""
        found = [self.info.read(rows, columns) for rows in self.file_rows(first, last)]
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _read_linear(self, spans: list[tuple[int, int]]) -> np.ndarray:
        ins, outs = self.shape[: self.inputs], self.shape[self.inputs :]
        width, height = math.prod(ins[1:]), math.prod(outs[1:])
        (c0, c1), (r0, r1) = spans[0], spans[self.inputs]
        data = self.read_rows(r0 * height, r1 * height, slice(c0 * width, c1 * width))
        # Whole leading input and output rows were read; the other axes are cut here.
        data = to_param(data, "linear", (c1 - c0, *ins[1:], r1 - r0, *outs[1:]))
        cut = [slice(*span) for span in spans]
        cut[0] = cut[self.inputs] = slice(None)
        return data[tuple(cut)]


@dataclasses.dataclass(frozen=True)
class Target:
    """A parameter and all that fills it.

    Attributes:
        dtype: in which it is kept.
        pieces: one, or one per layer (and expert) in order.
    """

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype
    pieces: tuple[Piece, ...]

    @property
    def stacked(self) -> int:
        """How many leading axes are stacked: layers, experts."""
        return len(self.pieces[0].lead)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole parameter as kept."""
        return math.prod(self.shape) * self.dtype.itemsize

    def read(self, index: Index) -> np.ndarray:
        """A slice of the parameter, contiguous, in its dtype. Reads only the bytes it needs."""
        if not self.stacked:
            piece = self.pieces[0]
            return np.ascontiguousarray(cast(piece.read(index), self.dtype, piece.info.name))
        spans = [s.indices(n)[:2] for s, n in zip(index, self.shape, strict=True)]
        out = np.empty([last - first for first, last in spans], self.dtype)
        lead = self.shape[: self.stacked]
        for row in np.ndindex(out.shape[: self.stacked]):
            at = [first + i for (first, _), i in zip(spans, row, strict=False)]
            piece = self.pieces[int(np.ravel_multi_index(at, lead))]
            out[row] = cast(piece.read(index[self.stacked :]), self.dtype, piece.info.name)
        return out


def cast(array: np.ndarray, dtype: np.dtype, name: str) -> np.ndarray:
    """``array`` as ``dtype`` (round to nearest even); refuses to turn numbers into infinities."""
    if array.dtype == dtype:
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        out = array.astype(dtype)
    if not np.isfinite(out).all() and np.isfinite(array).all():
        raise RangeError(
            f"tensor {name!r} has values beyond the range of {dtype.name}; choose another --dtype"
        )
    return out


def common_dtype(dtypes: set[np.dtype]) -> np.dtype:
    """The smallest float dtype that holds all values of the given ones exactly."""
    if len(dtypes) == 1:
        return next(iter(dtypes))
    return np.dtype(np.float64 if np.dtype(np.float64) in dtypes else np.float32)


def linear_inputs(graphdef: nnx.GraphDef[Any], abstract: dict[str, Any]) -> dict[str, int]:
    """Kernel path -> number of input axes, for every Linear of an abstract model.

    Other kernels count as having one output axis.
    """
    model = nnx.merge(graphdef, abstract)
    return {
        "/".join(map(str, (*path, "kernel"))): len(module.inputs)
        for path, module in nnx.iter_modules(model)
        if isinstance(module, Linear)
    }


def flatten(tree: Mapping[str, Any]) -> dict[str, jax.ShapeDtypeStruct]:
    """Nested dict -> slash-joined path -> leaf, sorted by path."""
    flat = jax.tree_util.tree_leaves_with_path(tree)
    return dict(sorted(("/".join(str(k.key) for k in path), leaf) for path, leaf in flat))


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Inverse of ``flatten``."""
    tree: dict[str, Any] = {}
    for path, leaf in flat.items():
        *parents, last = path.split("/")
        node = tree
        for part in parents:
            node = node.setdefault(part, {})
        node[last] = leaf
    return tree
