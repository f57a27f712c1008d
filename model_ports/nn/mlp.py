"""Feed-forward blocks."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from model_ports.nn.linear import Linear
from model_ports.sharding import constrain


def gelu(x: jax.Array) -> jax.Array:
    """Exact (erf) GELU, the default of ``torch.nn.GELU``."""
    return jax.nn.gelu(x, approximate=False)


def quick_gelu(x: jax.Array) -> jax.Array:
    """CLIP's approximation of GELU, x * sigmoid(1.702 x)."""
    return x * jax.nn.sigmoid(1.702 * x)


def gelu_tanh(x: jax.Array) -> jax.Array:
    """GELU's tanh form, ``gelu_pytorch_tanh`` of transformers."""
    return jax.nn.gelu(x, approximate=True)


class GatedMLP(nnx.Module):
    """``down(act(gate(x)) * up(x))``; SwiGLU with the default activation."""

    def __init__(
        self,
        dim: int,
        hidden: int,
        *,
        bias: bool,
        rngs: nnx.Rngs,
        dtype: jnp.dtype = jnp.float32,
        act: Callable[[jax.Array], jax.Array] = jax.nn.silu,
    ):
        self.act = act
        self.gate = Linear((dim,), (hidden,), bias=bias, rngs=rngs, dtype=dtype)
        self.up = Linear((dim,), (hidden,), bias=bias, rngs=rngs, dtype=dtype)
        self.down = Linear((hidden,), (dim,), bias=bias, rngs=rngs, dtype=dtype)

    def __call__(self, x: jax.Array) -> jax.Array:
        """x [B, T, D] -> [B, T, D]."""
        hidden = self.act(self.gate(x)) * self.up(x)
        return self.down(constrain(hidden, "batch", None, "mlp"))


class MLP(nnx.Module):
    """``fc2(act(fc1(x)))``, by default with exact GELU."""

    def __init__(
        self,
        dim: int,
        hidden: int,
        out: int,
        *,
        rngs: nnx.Rngs,
        dtype: jnp.dtype = jnp.float32,
        act: Callable[[jax.Array], jax.Array] = gelu,
    ):
        self.act = act
        self.fc1 = Linear((dim,), (hidden,), bias=True, rngs=rngs, dtype=dtype)
        self.fc2 = Linear((hidden,), (out,), bias=True, rngs=rngs, dtype=dtype)

    def __call__(self, x: jax.Array) -> jax.Array:
        """x [..., D] -> [..., out]."""
        return self.fc2(self.act(self.fc1(x)))
