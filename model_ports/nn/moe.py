"""Mixture of experts: every token goes through a few of many small gated MLPs.

Axis letters: B batch, T sequence, M tokens, D model dim, E experts, K experts per token, F inner
dim of an expert.

Tokens are sorted by expert and multiplied with ``jax.lax.ragged_dot``, a grouped matrix product
of M * K rows, whose shapes do not depend on the routing. (XLA has it on GPU and TPU; on CPU, JAX
spells it out over all experts.)

Source: DeepSeekMoE; transformers ``DeepseekV2Moe``.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from model_ports.nn.mlp import GatedMLP
from model_ports.sharding import per_device


@dataclasses.dataclass(frozen=True)
class Experts:
    """Shape and routing.

    Attributes:
        count: E, routed experts.
        active: K, experts per token: those with the largest softmax scores.
        hidden: F of a routed expert.
        shared: number of experts that every token goes through, computed as one MLP of
            ``shared * hidden``.
        scale: multiplies the scores, which are used as they are (their sum is below one).
        first: first layer that has experts; those before it have one dense MLP.
    """

    count: int
    active: int
    hidden: int
    shared: int
    scale: float = 1.0
    first: int = 0


class StackedLinear(nnx.Module):
    """Kernels [E, inputs, outputs] of all experts."""

    def __init__(self, count: int, inputs: int, outputs: int, *, rngs: nnx.Rngs, dtype: jnp.dtype):
        std, shape = 1.0 / math.sqrt(inputs), (count, inputs, outputs)
        self.kernel = nnx.Param(std * jax.random.normal(rngs.params(), shape, dtype))


class RoutedExperts(nnx.Module):
    """The routed experts' gate and up [E, D, F] and down [E, F, D]."""

    def __init__(self, dim: int, cfg: Experts, *, rngs: nnx.Rngs, dtype: jnp.dtype):
        into, back = (cfg.count, dim, cfg.hidden), (cfg.count, cfg.hidden, dim)
        self.gate = StackedLinear(*into, rngs=rngs, dtype=dtype)
        self.up = StackedLinear(*into, rngs=rngs, dtype=dtype)
        self.down = StackedLinear(*back, rngs=rngs, dtype=dtype)


class Router(nnx.Module):
    """Scores of all experts: softmax in float32, whatever the dtype of x."""

    def __init__(self, dim: int, count: int, *, rngs: nnx.Rngs, dtype: jnp.dtype):
        std = 1.0 / math.sqrt(dim)
        self.kernel = nnx.Param(std * jax.random.normal(rngs.params(), (dim, count), dtype))

    def __call__(self, x: jax.Array) -> jax.Array:
        """x [..., D] -> float32 [..., E], sums to one."""
        # Highest precision: close scores must not change places by the hardware's rounding.
        kernel = self.kernel[...].astype(jnp.float32)
        logits = jnp.matmul(x.astype(jnp.float32), kernel, precision=jax.lax.Precision.HIGHEST)
        return jax.nn.softmax(logits, axis=-1)


class MoE(nnx.Module):
    """Routed experts weighted by their scores, plus shared ones."""

    def __init__(
        self,
        dim: int,
        cfg: Experts,
        *,
        rngs: nnx.Rngs,
        dtype: jnp.dtype,
        act: Callable[[jax.Array], jax.Array] = jax.nn.silu,
    ):
        self.cfg, self.act = cfg, act
        self.router = Router(dim, cfg.count, rngs=rngs, dtype=dtype)
        self.experts = RoutedExperts(dim, cfg, rngs=rngs, dtype=dtype)
        hidden = cfg.shared * cfg.hidden
        self.shared = GatedMLP(dim, hidden, bias=False, rngs=rngs, dtype=dtype, act=act)

    def __call__(self, x: jax.Array) -> jax.Array:
        """x [B, T, D] -> [B, T, D]."""
        tokens = ("batch", None, None)
        largest = partial(jax.lax.top_k, k=self.cfg.active)
        scores, chosen = per_device(largest, (self.router(x),), (tokens,), tokens)
        kernels = (self.experts.gate, self.experts.up, self.experts.down)
        routed = per_device(
            self._routed,
            (x, self.cfg.scale * scores, chosen, *(one.kernel[...] for one in kernels)),
            (*[tokens] * 3, *[(None, None, "mlp")] * 2, (None, "mlp", None)),
            tokens,
        )
        return routed + self.shared(x)

    def _routed(
        self,
        x: jax.Array,
        weights: jax.Array,
        chosen: jax.Array,
        gate: jax.Array,
        up: jax.Array,
        down: jax.Array,
    ) -> jax.Array:
        """Weighted sum of the chosen experts' outputs, [B, T, D].

        Args:
            x: [B, T, D].
            weights: float32 [B, T, K].
            chosen: int32 [B, T, K].
            gate, up: [E, D, F]. down: [E, F, D].
        """
        flat, experts = x.reshape(-1, x.shape[-1]), chosen.reshape(-1)
        order = jnp.argsort(experts, stable=True)
        rows = flat[order // self.cfg.active]
        sizes = jnp.bincount(experts, length=self.cfg.count).astype(jnp.int32)
        hidden = self.act(jax.lax.ragged_dot(rows, gate, sizes))
        hidden = hidden * jax.lax.ragged_dot(rows, up, sizes)
        out = jax.lax.ragged_dot(hidden, down, sizes)
        out = out[jnp.argsort(order)].reshape(*chosen.shape, -1)
        return jnp.sum(out.astype(jnp.float32) * weights[..., None], axis=-2).astype(x.dtype)
