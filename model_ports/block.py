"""One decoder layer: its settings, attention with a per-head gate, and feed-forward.

Axis letters: B batch, T query sequence, S key sequence, N query heads, K key-value heads,
H head dim, D model dim, F MLP dim.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from model_ports.nn.attention import Tap, Tapped, Visible, attend
from model_ports.nn.linear import Linear
from model_ports.nn.mla import Latent, LatentAttention
from model_ports.nn.mlp import GatedMLP, gelu_tanh
from model_ports.nn.moe import Experts, MoE
from model_ports.nn.norms import RMSNorm
from model_ports.nn.rope import Rope, apply_rope
from model_ports.sharding import constrain

Act = Literal["silu", "gelu_tanh"]
ACTS: Mapping[Act, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "gelu_tanh": gelu_tanh,
}


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
    """Shape and numerics of a decoder; every value comes from a checkpoint's config.json.

    Attributes:
        qk_norm: RMS norm over the head dim of queries and keys, before the rotation.
        post_norms: also norm the outputs of attention and MLP before they are added
            (four norms a layer).
        norm_offset: norms multiply by 1 + scale, in float32.
        act: activation of the gated MLP.
        embed_scale: multiplies token embeddings (not image features), in their dtype.
        attn_scale: multiplies attention logits; None for head_dim ** -0.5.
        attn_softcap, final_softcap: bounds of attention logits and output logits; None for no
            bound.
        windows: sliding window of each layer in tokens, 0 for a layer that sees all; empty
            where all layers do.
        tied: the output head is the embedding table.
        latent: sizes of multi-head latent attention; None for grouped-query attention.
        experts: mixture of experts, and which layers have it; None for dense MLPs.
    """

    vocab: int
    layers: int
    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_dim: int
    norm_eps: float
    rope: Rope
    qkv_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    norm_offset: bool = False
    act: Act = "silu"
    embed_scale: float | None = None
    attn_scale: float | None = None
    attn_softcap: float | None = None
    final_softcap: float | None = None
    windows: tuple[int, ...] = ()
    tied: bool = False
    latent: Latent | None = None
    experts: Experts | None = None

    @property
    def value_dim(self) -> int:
        """Dims of each head's output, of which the output projection has ``heads`` slices."""
        return self.head_dim if self.latent is None else self.latent.value

    @property
    def dense_layers(self) -> int:
        """Leading layers without experts in a decoder with experts; else 0."""
        return 0 if self.experts is None else self.experts.first

    @property
    def scale(self) -> float:
        """What attention logits are multiplied by."""
        return self.head_dim**-0.5 if self.attn_scale is None else self.attn_scale

    def norm(self, dim: int, dtype: jnp.dtype) -> RMSNorm:
        """An RMS norm as this decoder has them."""
        return RMSNorm(dim, eps=self.norm_eps, dtype=dtype, offset=self.norm_offset)


class Attention(nnx.Module):
    """Grouped-query self-attention with a per-head gate on its output."""

    def __init__(self, cfg: DecoderConfig, *, rngs: nnx.Rngs, dtype: jnp.dtype):
        self.cfg = cfg
        q, kv = (cfg.heads, cfg.head_dim), (cfg.kv_heads, cfg.head_dim)
        self.q = Linear((cfg.dim,), q, bias=cfg.qkv_bias, rngs=rngs, dtype=dtype)
        self.k = Linear((cfg.dim,), kv, bias=cfg.qkv_bias, rngs=rngs, dtype=dtype)
        self.v = Linear((cfg.dim,), kv, bias=cfg.qkv_bias, rngs=rngs, dtype=dtype)
        self.o = Linear(q, (cfg.dim,), bias=False, rngs=rngs, dtype=dtype)
        self.q_norm = _head_norm(cfg, dtype)
        self.k_norm = _head_norm(cfg, dtype)

    def keep(self, heads: tuple[int, ...]) -> "Attention":
        """The same attention with only the given query heads (one KV head for each)."""
        index = jnp.array(heads, jnp.int32)
        kv_index = index // (self.cfg.heads // self.cfg.kv_heads)
        cfg = dataclasses.replace(self.cfg, heads=len(heads), kv_heads=len(heads))
        kept: Attention = nnx.eval_shape(
            lambda: Attention(cfg, rngs=nnx.Rngs(0), dtype=jnp.float32)
        )
        for name, rows in (("q", index), ("k", kv_index), ("v", kv_index)):
            source, target = getattr(self, name), getattr(kept, name)
            target.kernel = nnx.Param(source.kernel[...][:, rows])
            if source.bias is not None:
                target.bias = nnx.Param(source.bias[...][rows])
        kept.o.kernel = nnx.Param(self.o.kernel[...][index])
        kept.q_norm, kept.k_norm = self.q_norm, self.k_norm
        return kept

    def _queries_keys(
        self, x: jax.Array, cos: jax.Array, sin: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Normed and rotated q [B, T, N, H] and k [B, T, K, H]."""
        q, k, pairs = self.q(x), self.k(x), self.cfg.rope.pairs
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        return apply_rope(q, cos, sin, pairs), apply_rope(k, cos, sin, pairs)

    def __call__(
        self,
        x: jax.Array,
        cos: jax.Array,
        sin: jax.Array,
        *,
        visible: Visible,
        cached: tuple[jax.Array, jax.Array] | None,
        gate: jax.Array,
        tap: Tap | None,
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array], Tapped | None]:
        """x [B, T, D] -> (output [B, T, D], (k, v), tapped).

        Args:
            cached: keys and values [B, S, K, H] to extend at slot ``visible.first``.
            gate: [B or 1, N], multiplies each head's output before the output projection.
        """
        q, k = self._queries_keys(x, cos, sin)
        z, kv, tapped = attend(
            q,
            k,
            self.v(x),
            visible=visible,
            cached=cached,
            gate=gate,
            tap=tap,
            scale=self.cfg.scale,
            softcap=self.cfg.attn_softcap,
        )
        return self.o(z), kv, tapped


def _head_norm(cfg: DecoderConfig, dtype: jnp.dtype) -> RMSNorm | None:
    return cfg.norm(cfg.head_dim, dtype) if cfg.qk_norm else None


def _attention(
    cfg: DecoderConfig, *, rngs: nnx.Rngs, dtype: jnp.dtype
) -> Attention | LatentAttention:
    if cfg.latent is None:
        return Attention(cfg, rngs=rngs, dtype=dtype)
    scale, pairs = cfg.scale, cfg.rope.pairs
    return LatentAttention(
        cfg.dim, cfg.heads, cfg.latent, scale=scale, pairs=pairs, rngs=rngs, dtype=dtype
    )


class Block(nnx.Module):
    """Pre-norm decoder layer, with or without norms after attention and MLP.

    Args:
        dense: has one MLP even where the config has experts.
    """

    def __init__(
        self, cfg: DecoderConfig, *, rngs: nnx.Rngs, dtype: jnp.dtype, dense: bool = False
    ):
        self.pre_attn_norm = cfg.norm(cfg.dim, dtype)
        self.attn = _attention(cfg, rngs=rngs, dtype=dtype)
        self.post_attn_norm = cfg.norm(cfg.dim, dtype) if cfg.post_norms else None
        self.pre_mlp_norm = cfg.norm(cfg.dim, dtype)
        self.mlp: GatedMLP | MoE
        if cfg.experts is None or dense:
            self.mlp = GatedMLP(
                cfg.dim, cfg.mlp_dim, bias=False, rngs=rngs, dtype=dtype, act=ACTS[cfg.act]
            )
        else:
            self.mlp = MoE(cfg.dim, cfg.experts, rngs=rngs, dtype=dtype, act=ACTS[cfg.act])
        self.post_mlp_norm = cfg.norm(cfg.dim, dtype) if cfg.post_norms else None

    def __call__(self, x: jax.Array, cos: jax.Array, sin: jax.Array, **attention: Any) -> Any:
        """x [B, T, D] -> (x, (k, v), tapped); keyword arguments as in Attention."""
        out, kv, tapped = self.attn(self.pre_attn_norm(x), cos, sin, **attention)
        if self.post_attn_norm is not None:
            out = self.post_attn_norm(out)
        return self.feed_forward(constrain(x + out, "batch", None, None)), kv, tapped

    def feed_forward(self, x: jax.Array) -> jax.Array:
        """The second half of the layer, x [B, T, D]; all that is left without heads."""
        out = self.mlp(self.pre_mlp_norm(x))
        if self.post_mlp_norm is not None:
            out = self.post_mlp_norm(out)
        return constrain(x + out, "batch", None, None)


class Embedding(nnx.Module):
    """Token embedding table [vocab, D], whose rows may be scaled on the way in."""

    def __init__(
        self,
        vocab: int,
        dim: int,
        *,
        rngs: nnx.Rngs,
        dtype: jnp.dtype,
        scale: float | None = None,
    ):
        self.scale = scale
        self.embedding = nnx.Param(0.02 * jax.random.normal(rngs.params(), (vocab, dim), dtype))

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """tokens int32 [B, T] -> [B, T, D]."""
        x = jnp.take(self.embedding[...], tokens, axis=0)
        return x if self.scale is None else x * jnp.asarray(self.scale, x.dtype)
