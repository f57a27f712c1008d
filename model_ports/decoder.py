"""The one language-model decoder: stacked layers under ``lax.scan``, taps and head masks.

Axis letters: A position axes, B batch, T query sequence, S key sequence, N query heads,
K key-value heads, H head dim, D model dim, F MLP dim, L layers, Q tapped rows, R key sets.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model_ports.errors import UserError
from model_ports.nn.attention import Tap, Tapped, Visible, causal_attention, tap_rows
from model_ports.nn.cache import KVCache
from model_ports.nn.linear import Linear
from model_ports.nn.mlp import GatedMLP
from model_ports.nn.norms import RMSNorm
from model_ports.nn.rope import Rope, apply_rope, rope_tables
from model_ports.sharding import constrain

# Heads to drop, fixed at compile time: a frozenset of (layer, head).
StaticHeads = frozenset[tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
    """Shape and numerics of a decoder; every value comes from a checkpoint's config.json."""

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
    tied: bool = False


class Attention(nnx.Module):
    """Grouped-query self-attention with a per-head gate on its output."""

    def __init__(self, cfg: DecoderConfig, *, rngs: nnx.Rngs, dtype: jnp.dtype):
        self.cfg = cfg
        q, kv = (cfg.heads, cfg.head_dim), (cfg.kv_heads, cfg.head_dim)
        self.q = Linear((cfg.dim,), q, bias=cfg.qkv_bias, rngs=rngs, dtype=dtype)
        self.k = Linear((cfg.dim,), kv, bias=cfg.qkv_bias, rngs=rngs, dtype=dtype)
        self.v = Linear((cfg.dim,), kv, bias=cfg.qkv_bias, rngs=rngs, dtype=dtype)
        self.o = Linear(q, (cfg.dim,), bias=False, rngs=rngs, dtype=dtype)

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
        return kept

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
        scale = self.cfg.head_dim**-0.5
        q = constrain(apply_rope(self.q(x), cos, sin), "batch", None, "heads", None)
        k = constrain(apply_rope(self.k(x), cos, sin), "batch", None, "kv_heads", None)
        v = constrain(self.v(x), "batch", None, "kv_heads", None)
        if cached is not None:
            start = (0, visible.first, 0, 0)
            k = jax.lax.dynamic_update_slice(cached[0], k.astype(cached[0].dtype), start)
            v = jax.lax.dynamic_update_slice(cached[1], v.astype(cached[1].dtype), start)
        z = causal_attention(q, k, v, visible, scale)
        z = z * gate[:, None, :, None].astype(z.dtype)
        tapped = None if tap is None else tap_rows(q, k, visible, tap, scale)
        return self.o(constrain(z, "batch", None, "heads", None)), (k, v), tapped


class Block(nnx.Module):
    """Pre-norm decoder layer."""

    def __init__(self, cfg: DecoderConfig, *, rngs: nnx.Rngs, dtype: jnp.dtype):
        self.pre_attn_norm = RMSNorm(cfg.dim, eps=cfg.norm_eps, dtype=dtype)
        self.attn = Attention(cfg, rngs=rngs, dtype=dtype)
        self.pre_mlp_norm = RMSNorm(cfg.dim, eps=cfg.norm_eps, dtype=dtype)
        self.mlp = GatedMLP(cfg.dim, cfg.mlp_dim, bias=False, rngs=rngs, dtype=dtype)

    def __call__(self, x: jax.Array, cos: jax.Array, sin: jax.Array, **attention: Any) -> Any:
        """x [B, T, D] -> (x, (k, v), tapped); keyword arguments as in Attention."""
        out, kv, tapped = self.attn(self.pre_attn_norm(x), cos, sin, **attention)
        return self.feed_forward(constrain(x + out, "batch", None, None)), kv, tapped

    def feed_forward(self, x: jax.Array) -> jax.Array:
        """The second half of the layer, x [B, T, D]; all that is left without heads."""
        return constrain(x + self.mlp(self.pre_mlp_norm(x)), "batch", None, None)


class Embedding(nnx.Module):
    """Token embedding table [vocab, D]."""

    def __init__(self, vocab: int, dim: int, *, rngs: nnx.Rngs, dtype: jnp.dtype):
        self.embedding = nnx.Param(0.02 * jax.random.normal(rngs.params(), (vocab, dim), dtype))

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """tokens int32 [B, T] -> [B, T, D]."""
        return jnp.take(self.embedding[...], tokens, axis=0)


class Decoder(nnx.Module):
    """Stacked decoder layers between an embedding table and an output head."""

    def __init__(self, cfg: DecoderConfig, *, rngs: nnx.Rngs, dtype: jnp.dtype = jnp.float32):
        self.cfg = cfg
        self.embed = Embedding(cfg.vocab, cfg.dim, rngs=rngs, dtype=dtype)

        @nnx.split_rngs(splits=cfg.layers)
        @nnx.vmap(in_axes=0, out_axes=0)
        def stack(rngs: nnx.Rngs) -> Block:
            return Block(cfg, rngs=rngs, dtype=dtype)

        self.layers = stack(rngs)
        self.final_norm = RMSNorm(cfg.dim, eps=cfg.norm_eps, dtype=dtype)
        self.lm_head = (
            None
            if cfg.tied
            else Linear((cfg.dim,), (cfg.vocab,), bias=False, rngs=rngs, dtype=dtype)
        )

    def logits(self, hidden: jax.Array) -> jax.Array:
        """hidden [..., D] (already normalised) -> float32 [..., vocab]."""
        if self.lm_head is not None:
            return self.lm_head(hidden).astype(jnp.float32)
        return (hidden @ self.embed.embedding[...].T).astype(jnp.float32)

    def empty_cache(self, batch: int, slots: int) -> KVCache:
        """Cache for ``slots`` tokens in the dtype of the embeddings."""
        c, dtype = self.cfg, self.embed.embedding[...].dtype
        return KVCache.empty(c.layers, batch, slots, c.kv_heads, c.head_dim, dtype)

    def __call__(
        self,
        x: jax.Array,
        positions: jax.Array,
        valid: jax.Array,
        *,
        cache: KVCache | None = None,
        head_mask: jax.Array | None = None,
        static_heads: StaticHeads = frozenset(),
        tap: Tap | None = None,
    ) -> tuple[jax.Array, KVCache | None, Tapped | None]:
        """Run all layers.

        Args:
            x: embeddings [B, T, D].
            positions: int32 [A, B, T] rotary positions.
            valid: bool [B, T], real tokens.
            cache: extended by T tokens at its write position; None attends within x.
            head_mask: [L, N] or [B, L, N], multiplies each head's output before the output
                projection (0 removes the head). None is the same program as all ones.
            static_heads: heads removed at compile time; their work is not done, and their
                tapped values are zero. Needs ``cache=None``.
            tap: rows and key sets to reduce. Key sets span the S slots of the cache, if any.

        Returns:
            (hidden [B, T, D] after the final norm, cache, tapped with leading axis L).
        """
        cfg = self.cfg
        if cache is None:
            visible = Visible(first=jnp.zeros((), jnp.int32), valid=valid)
        else:
            slots = jax.lax.dynamic_update_slice(cache.valid, valid, (0, cache.length))
            visible = Visible(first=cache.length, valid=slots)
        cos, sin = rope_tables(positions, cfg.rope, cfg.head_dim)
        gates = _layer_gates(head_mask, cfg, batch=x.shape[0])
        if static_heads:
            _check_heads(static_heads, cfg)
            if cache is not None:
                raise UserError("static_heads drops keys, so it needs cache=None; use head_mask")
            x, tapped = self._unrolled(x, cos, sin, visible, gates, static_heads, tap)
            return self.final_norm(x), None, tapped

        graphdef, stacked = nnx.split(self.layers)

        def layer(x: jax.Array, xs: Any) -> tuple[jax.Array, Any]:
            params, gate, cached = xs
            block = nnx.merge(graphdef, params)
            with jax.named_scope("layer"):
                x, kv, tapped = block(
                    x, cos, sin, visible=visible, cached=cached, gate=gate, tap=tap
                )
            return x, (kv if cached is not None else None, tapped)

        cached = None if cache is None else (cache.k, cache.v)
        x, (kv, tapped) = jax.lax.scan(layer, x, (stacked, gates, cached))
        if cache is not None:
            length = cache.length + x.shape[1]
            cache = KVCache(k=kv[0], v=kv[1], valid=visible.valid, length=length)
        return self.final_norm(x), cache, tapped

    def _unrolled(
        self,
        x: jax.Array,
        cos: jax.Array,
        sin: jax.Array,
        visible: Visible,
        gates: jax.Array,
        drop: StaticHeads,
        tap: Tap | None,
    ) -> tuple[jax.Array, Tapped | None]:
        """Layer by layer with dropped heads cut out of the weights."""
        graphdef, stacked = nnx.split(self.layers)
        collected: list[Tapped] = []
        for index in range(self.cfg.layers):
            block = nnx.merge(graphdef, jax.tree.map(lambda p, i=index: p[i], stacked))
            kept = tuple(h for h in range(self.cfg.heads) if (index, h) not in drop)
            if not kept:
                x = block.feed_forward(x)
                if tap is not None:
                    collected.append(_no_heads(tap, self.cfg.heads))
                continue
            gate = gates[index]
            if len(kept) < self.cfg.heads:
                block.attn = block.attn.keep(kept)
                gate = gate[:, jnp.array(kept, jnp.int32)]
            x, _, tapped = block(x, cos, sin, visible=visible, cached=None, gate=gate, tap=tap)
            if tapped is not None:
                collected.append(_restore_heads(tapped, kept, self.cfg.heads))
        if not collected:
            return x, None
        return x, jax.tree.map(lambda *leaves: jnp.stack(leaves), *collected)


def _layer_gates(head_mask: jax.Array | None, cfg: DecoderConfig, batch: int) -> jax.Array:
    """Canonical gates [L, B or 1, N]; None becomes ones, so that it is the same program."""
    if head_mask is None:
        return jnp.ones((cfg.layers, 1, cfg.heads), jnp.float32)
    shape = head_mask.shape
    if shape not in ((cfg.layers, cfg.heads), (batch, cfg.layers, cfg.heads)):
        raise UserError(
            f"head_mask has shape {list(shape)}; expected [layers, heads] = "
            f"[{cfg.layers}, {cfg.heads}] or [batch, layers, heads] = "
            f"[{batch}, {cfg.layers}, {cfg.heads}]"
        )
    if head_mask.ndim == 2:
        return head_mask[:, None, :]
    return jnp.swapaxes(head_mask, 0, 1)


def _check_heads(heads: StaticHeads, cfg: DecoderConfig) -> None:
    for layer, head in sorted(heads):
        if not (0 <= layer < cfg.layers and 0 <= head < cfg.heads):
            raise UserError(
                f"static_heads names head {head} of layer {layer}; this decoder has layers "
                f"0..{cfg.layers - 1} with heads 0..{cfg.heads - 1}"
            )


def _no_heads(tap: Tap, heads: int) -> Tapped:
    """What a layer reports when all its heads are dropped: zeros."""
    (b, sets, slots), rows = tap.sets.shape, tap.rows.shape[1]
    reduced = jnp.zeros((b, heads, rows, sets), jnp.float32)
    top = jnp.zeros((b, heads, rows), jnp.int32)
    weights = jnp.zeros((b, heads, rows, slots), jnp.float32) if tap.weights else None
    return Tapped(mass=reduced, hit=reduced, top=top, weights=weights)


def _restore_heads(tapped: Tapped, kept: tuple[int, ...], heads: int) -> Tapped:
    """Put kept heads back at their own index; dropped heads read zero."""

    def spread(leaf: jax.Array) -> jax.Array:
        full = jnp.zeros((leaf.shape[0], heads, *leaf.shape[2:]), leaf.dtype)
        return full.at[:, jnp.array(kept, jnp.int32)].set(leaf)

    return jax.tree.map(spread, tapped)
