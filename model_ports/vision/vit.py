"""Parts of plain vision transformers: patches, pre-norm blocks, and a scan over stacked blocks.

Axis letters: B crops, S side of a crop in pixels, P tokens of a crop, D width, N heads, L blocks.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model_ports.convert.rules import Layout, Rule, pair
from model_ports.nn.attention import full_attention
from model_ports.nn.linear import Linear
from model_ports.nn.mlp import MLP, gelu
from model_ports.nn.norms import LayerNorm
from model_ports.sharding import constrain


def patchify(crops: jax.Array, patch: int) -> jax.Array:
    """crops [B, C, H, W] -> row-major patch vectors [B, P, C * patch**2] in (c, dy, dx) order.

    A convolution with stride ``patch`` is a matrix product with these vectors.
    """
    b, c, h, w = crops.shape
    rows, columns = h // patch, w // patch
    grid = crops.reshape(b, c, rows, patch, columns, patch).transpose(0, 2, 4, 1, 3, 5)
    return grid.reshape(b, rows * columns, c * patch * patch)


class VitAttention(nnx.Module):
    """Full self-attention within a crop; queries, keys and values are apart, so that heads can
    be sharded."""

    def __init__(
        self, dim: int, heads: int, *, qkv_bias: bool, rngs: nnx.Rngs, dtype: jnp.dtype
    ) -> None:
        split = (heads, dim // heads)
        self.q = Linear((dim,), split, bias=qkv_bias, rngs=rngs, dtype=dtype)
        self.k = Linear((dim,), split, bias=qkv_bias, rngs=rngs, dtype=dtype)
        self.v = Linear((dim,), split, bias=qkv_bias, rngs=rngs, dtype=dtype)
        self.o = Linear(split, (dim,), bias=True, rngs=rngs, dtype=dtype)
        self.scale = (dim // heads) ** -0.5

    def __call__(self, x: jax.Array, valid: jax.Array | None = None) -> jax.Array:
        """x [B, P, D] -> [B, P, D]; ``valid`` bool [B, P] hides padding keys."""
        q = constrain(self.q(x), "batch", None, "heads", None)
        k = constrain(self.k(x), "batch", None, "heads", None)
        v = constrain(self.v(x), "batch", None, "heads", None)
        keys = jnp.ones(x.shape[:2], bool) if valid is None else valid
        return self.o(full_attention(q, k, v, keys, self.scale))


class VitBlock(nnx.Module):
    """Pre-norm block: attention and MLP with biases, optionally scaled per channel.

    Args:
        act: activation of the MLP.
        layer_scale: multiply both branches by learned vectors (LayerScale).
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        mlp_dim: int,
        *,
        eps: float,
        qkv_bias: bool = True,
        act: Callable[[jax.Array], jax.Array] = gelu,
        layer_scale: bool = False,
        rngs: nnx.Rngs,
        dtype: jnp.dtype,
    ) -> None:
        def scale() -> nnx.Param[jax.Array] | None:
            return nnx.Param(jnp.full((dim,), 0.1, dtype)) if layer_scale else None

        self.norm1 = LayerNorm(dim, eps=eps, dtype=dtype)
        self.attn = VitAttention(dim, heads, qkv_bias=qkv_bias, rngs=rngs, dtype=dtype)
        self.scale1 = scale()
        self.norm2 = LayerNorm(dim, eps=eps, dtype=dtype)
        self.mlp = MLP(dim, mlp_dim, dim, act=act, rngs=rngs, dtype=dtype)
        self.scale2 = scale()

    def __call__(self, x: jax.Array, valid: jax.Array | None = None) -> jax.Array:
        """x [B, P, D] -> [B, P, D]; ``valid`` as in VitAttention."""
        x = x + _scaled(self.scale1, self.attn(self.norm1(x), valid))
        x = x + _scaled(self.scale2, self.mlp(self.norm2(x)))
        return constrain(x, "batch", None, None)


def _scaled(scale: nnx.Param[jax.Array] | None, x: jax.Array) -> jax.Array:
    return x if scale is None else scale[...] * x


# (name in the files of transformers' CLIP and SigLIP, our name, layout of the weight).
_BLOCK: tuple[tuple[str, str, Layout], ...] = (
    ("layer_norm1", "norm1", "vector"),
    ("layer_norm2", "norm2", "vector"),
    ("self_attn.q_proj", "attn/q", "linear"),
    ("self_attn.k_proj", "attn/k", "linear"),
    ("self_attn.v_proj", "attn/v", "linear"),
    ("self_attn.out_proj", "attn/o", "linear"),
    ("mlp.fc1", "mlp/fc1", "linear"),
    ("mlp.fc2", "mlp/fc2", "linear"),
)


def block_rules(key: str, param: str) -> list[Rule]:
    """Key table of VitBlock without LayerScale, with the names of transformers' CLIP and SigLIP.

    Args:
        key, param: prefixes with their last dot or slash; ``key`` has ``{l}``.
    """
    rules = []
    for name, ours, layout in _BLOCK:
        rules += pair(f"{key}{name}", f"{param}{ours}", layout)
    return rules


def stacked_blocks(make: Callable[[nnx.Rngs], nnx.Module], count: int, rngs: nnx.Rngs) -> Any:
    """``count`` blocks made by ``make``, their parameters stacked on axis 0."""

    @nnx.split_rngs(splits=count)
    @nnx.vmap(in_axes=0, out_axes=0)
    def stack(rngs: nnx.Rngs) -> nnx.Module:
        return make(rngs)

    return stack(rngs)


def run_blocks(blocks: Any, x: jax.Array, *, count: int | None = None, **kwargs: Any) -> jax.Array:
    """Apply stacked blocks in order.

    Args:
        x: [B, P, D].
        count: only the first so many blocks; None for all.
        kwargs: passed to every block.
    """
    graphdef, stacked = nnx.split(blocks)
    if count is not None:
        stacked = jax.tree.map(lambda p: p[:count], stacked)

    def block(x: jax.Array, params: Any) -> tuple[jax.Array, None]:
        with jax.named_scope("vision_layer"):
            return nnx.merge(graphdef, params)(x, **kwargs), None

    x, _ = jax.lax.scan(block, x, stacked)
    return x
