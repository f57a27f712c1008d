"""How tensors of a file and parameters of a model correspond.

A rule names a tensor of the file (``{l}`` stands for a layer or block index, ``{e}`` for an
expert's), the parameter that it fills, and how. Layered rules fill one slice of a stacked
parameter each.
"""

import dataclasses
import math
from typing import Literal

import numpy as np

Layout = Literal["linear", "vector"]
Use = Literal["fill", "copy", "skip"]


@dataclasses.dataclass(frozen=True)
class Rule:
    """One file tensor (or a block of its rows) <-> one parameter (or one layer of it).

    Attributes:
        key: tensor name in the file; ``{l}`` runs over the stacked axis, and ``{e}`` over the
            axis after it.
        param: slash-joined parameter path; stacked on axis 0 if ``key`` has ``{l}``, and on
            axis 1 if it has ``{e}``, too.
        layout: ``linear`` for (out, in, ...) tensors of Linear and patch-embedding
            convolutions: flattened to (out, rest), transposed, reshaped to the parameter.
            ``vector`` for everything that is only reshaped (norms, biases, embeddings).
        rows: (index, count): the tensor's axis 0 is cut into ``count`` equal blocks and this
            rule takes block ``index`` (fused qkv, gate_up). Together the rules of a key must
            cover every block exactly once.
        span: how many blocks from ``index`` on this rule takes.
        groups: axis 0 is ``groups`` equal runs one after another, each cut into ``count``
            blocks, and the rule takes its blocks out of every run (a wqkv of which each
            key-value head keeps its queries, its key and its value together).
        use: ``fill`` is the normal case. The other two are tensors that a file may hold or
            lack: ``copy`` repeats the tensor that fills ``param`` (a tied output head) and is
            checked to be equal; ``skip`` has no effect on the model (rotary ``inv_freq``
            buffers), its ``param`` is empty.
        first: number that ``{l}`` starts with, for the second stack of a decoder.
        shape: of the file tensor where it does not follow from the parameter: convolution
            kernels, and tensors with axes of size 1. See ``file_shape`` for the others.
    """

    key: str
    param: str
    layout: Layout
    rows: tuple[int, int] | None = None
    span: int = 1
    groups: int = 1
    use: Use = "fill"
    first: int = 0
    shape: tuple[int, ...] | None = None

    @property
    def blocks(self) -> range:
        """The blocks of each run that this rule takes."""
        first = self.rows[0] if self.rows else 0
        return range(first, first + self.span)

    @property
    def count(self) -> int:
        """Blocks that each run is cut into."""
        return self.rows[1] if self.rows else 1

    @property
    def where(self) -> str:
        """The rows for people: ``rows 2/3``, ``rows 1-4/6 of each of 8 runs``."""
        first, last = self.blocks.start + 1, self.blocks.stop
        numbers = f"{first}" if first == last else f"{first}-{last}"
        runs = f" of each of {self.groups} runs" if self.groups > 1 else ""
        return f"rows {numbers}/{self.count}{runs}"


def pair(key: str, param: str, layout: Layout) -> list[Rule]:
    """Weight and bias of a linear layer or a norm."""
    weight = f"{param}/{'kernel' if layout == 'linear' else 'scale'}"
    return [Rule(f"{key}.weight", weight, layout), Rule(f"{key}.bias", f"{param}/bias", "vector")]


def fused(key: str, param: str, parts: str, *, bias: bool = True) -> list[Rule]:
    """Projections that a file keeps in one tensor, the rows of one after those of another.

    Args:
        key: of the tensor up to ``weight`` and ``bias``, e.g. ``attn.qkv.``.
        param: prefix of the projections with its last slash.
        parts: their names in the file's order, e.g. ``qkv``.
    """
    rules = []
    for index, part in enumerate(parts):
        rows = (index, len(parts))
        rules.append(Rule(f"{key}weight", f"{param}{part}/kernel", "linear", rows))
        if bias:
            rules.append(Rule(f"{key}bias", f"{param}{part}/bias", "vector", rows))
    return rules


def own_rows(tensor: np.ndarray, rule: Rule) -> np.ndarray:
    """The rows of a whole file tensor that a rule takes, in their order."""
    if rule.rows is None:
        return tensor
    runs = tensor.reshape(rule.groups, rule.count, -1, *tensor.shape[1:])
    return runs[:, rule.blocks.start : rule.blocks.stop].reshape(-1, *tensor.shape[1:])


def file_shape(rule: Rule, shape: tuple[int, ...], inputs: int) -> tuple[int, ...]:
    """Shape of the file tensor of a rule.

    Args:
        shape: of the parameter (of one layer).
        inputs: leading axes of ``shape`` that are inputs, for ``linear``.

    Returns:
        (outputs, inputs) for ``linear``; flat for biases; else the parameter's own shape; axis
        0 counts all row blocks.
    """
    if rule.shape is not None:
        return rule.shape

    def whole(own: int) -> int:
        return own // rule.span * rule.count

    if rule.layout == "linear":
        return whole(math.prod(shape[inputs:])), math.prod(shape[:inputs])
    if rule.param.endswith("/bias"):
        return (whole(math.prod(shape)),)
    return (whole(shape[0]), *shape[1:]) if shape else ()


def to_param(tensor: np.ndarray, layout: Layout, shape: tuple[int, ...]) -> np.ndarray:
    """File tensor (already cut to its rows) -> parameter slice of the given shape."""
    if layout == "linear":
        return tensor.reshape(tensor.shape[0], -1).T.reshape(shape)
    return tensor.reshape(shape)


def from_param(param: np.ndarray, layout: Layout, shape: tuple[int, ...]) -> np.ndarray:
    """Inverse of ``to_param``; ``shape`` is that of the file tensor (of this rule's rows)."""
    if layout == "linear":
        inputs = int(np.prod(shape[1:]))
        return param.reshape(inputs, shape[0]).T.reshape(shape)
    return param.reshape(shape)
