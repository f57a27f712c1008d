"""How tensors of a file and parameters of a model correspond.

A rule names a tensor of the file (``{l}`` stands for a layer or block index), the parameter
that it fills, and how. Layered rules fill one slice of a stacked parameter each.
"""

import dataclasses
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
    """

    key: str
    param: str
    layout: Layout
    rows: tuple[int, int] | None = None
    use: Use = "fill"


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
