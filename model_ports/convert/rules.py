"""How tensors of a file and parameters of a model correspond.

A rule names a tensor of the file (``{l}`` stands for a layer or block index), the parameter
that it fills, and how. Layered rules fill one slice of a stacked parameter each.
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
        key: tensor name in the file; ``{l}`` runs over the stacked axis.
        param: slash-joined parameter path; stacked on axis 0 if ``key`` has ``{l}``.
        layout: ``linear`` for (out, in, ...) tensors of Linear and patch-embedding
            convolutions: flattened to (out, rest), transposed, reshaped to the parameter.
            ``vector`` for everything that is only reshaped (norms, biases, embeddings).
        rows: (index, count): the tensor's axis 0 is cut into ``count`` equal blocks and this
            rule takes block ``index`` (fused qkv, gate_up). Together the rules of a key must
            cover every block exactly once.
        use: ``fill`` is the normal case. The other two are tensors that a file may hold or
            lack: ``copy`` repeats the tensor that fills ``param`` (a tied output head) and is
            checked to be equal; ``skip`` has no effect on the model (rotary ``inv_freq``
            buffers), its ``param`` is empty.
        shape: of the file tensor where it does not follow from the parameter: convolution
            kernels, and tensors with axes of size 1. See ``file_shape`` for the others.
    """

    key: str
    param: str
    layout: Layout
    rows: tuple[int, int] | None = None
    use: Use = "fill"
    shape: tuple[int, ...] | None = None


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
    count = rule.rows[1] if rule.rows else 1
    if rule.layout == "linear":
        return math.prod(shape[inputs:]) * count, math.prod(shape[:inputs])
    if rule.param.endswith("/bias"):
        return (math.prod(shape) * count,)
    return (shape[0] * count, *shape[1:]) if shape else ()


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
