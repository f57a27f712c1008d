"""Normalisation layers. Statistics are always computed in float32."""

import jax
import jax.numpy as jnp
from flax import nnx


class RMSNorm(nnx.Module):
    """Root-mean-square norm over the last axis: normalise in float32, cast, then scale.

    The order (cast before the multiplication) is that of the published Qwen and Llama code.

    Args:
        offset: Gemma's form: multiply by 1 + scale in float32, then cast.
    """

    def __init__(
        self, dim: int, *, eps: float, dtype: jnp.dtype = jnp.float32, offset: bool = False
    ):
        self.eps, self.offset = eps, offset
        self.scale = nnx.Param(jnp.full((dim,), 0.0 if offset else 1.0, dtype))

    def __call__(self, x: jax.Array) -> jax.Array:
        """x [..., D] -> [..., D], dtype of x."""
        x32 = x.astype(jnp.float32)
        variance = jnp.mean(jnp.square(x32), axis=-1, keepdims=True)
        normed = x32 * jax.lax.rsqrt(variance + self.eps)
        if self.offset:
            return (normed * (1.0 + self.scale[...].astype(jnp.float32))).astype(x.dtype)
        return normed.astype(x.dtype) * self.scale[...]


class LayerNorm(nnx.Module):
    """Layer norm with scale and bias over the last axis."""

    def __init__(self, dim: int, *, eps: float, dtype: jnp.dtype = jnp.float32):
        self.eps = eps
        self.scale = nnx.Param(jnp.ones((dim,), dtype))
        self.bias = nnx.Param(jnp.zeros((dim,), dtype))

    def __call__(self, x: jax.Array) -> jax.Array:
        """x [..., D] -> [..., D], dtype of x."""
        x32 = x.astype(jnp.float32)
        centred = x32 - jnp.mean(x32, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
        normed = centred * jax.lax.rsqrt(variance + self.eps)
        scaled = normed * self.scale[...].astype(jnp.float32)
        return (scaled + self.bias[...].astype(jnp.float32)).astype(x.dtype)
