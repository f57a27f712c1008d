"""Dense projections whose kernels keep their natural axes, e.g. [D, N, H] for queries."""

import math

import jax
import jax.numpy as jnp
from flax import nnx


class Linear(nnx.Module):
    """Contract the last ``len(inputs)`` axes of x with a kernel [*inputs, *outputs].

    Args:
        inputs, outputs: axis sizes, for instance ``(D,), (N, H)`` or ``(N, H), (D,)``.
        bias: adds a bias of shape ``outputs``.
    """

    def __init__(
        self,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        *,
        bias: bool,
        rngs: nnx.Rngs,
        dtype: jnp.dtype = jnp.float32,
    ):
        self.inputs, self.outputs = inputs, outputs
        std = 1.0 / math.sqrt(math.prod(inputs))
        shape = (*inputs, *outputs)
        self.kernel = nnx.Param(std * jax.random.normal(rngs.params(), shape, dtype))
        self.bias = nnx.Param(jnp.zeros(outputs, dtype)) if bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """x [..., *inputs] -> [..., *outputs], dtype of x."""
        n = len(self.inputs)
        lead = x.shape[: x.ndim - n]
        # One plain 2-D matrix product: XLA on CPU is several times slower on the einsum form,
        # and twice as slow in the backward pass when the leading axes stay apart.
        flat = x.reshape(-1, math.prod(self.inputs))
        kernel = self.kernel[...].reshape(math.prod(self.inputs), math.prod(self.outputs))
        y = (flat @ kernel).reshape(*lead, *self.outputs)
        return y if self.bias is None else y + self.bias[...]
