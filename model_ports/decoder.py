"""The one language-model decoder: stacked layers under ``lax.scan``, taps and head masks.

Axis letters: A position axes, B batch, T query sequence, S key sequence, N query heads,
K key-value heads, H head dim, D model dim, L layers, Q tapped rows, R key sets, J layers with
DeepStack features.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model_ports.block import Block, DecoderConfig, Embedding
from model_ports.errors import UserError
from model_ports.nn.attention import Tap, Tapped, Visible, soft_cap
from model_ports.nn.cache import KVCache
from model_ports.nn.linear import Linear
from model_ports.nn.rope import rope_tables

# Heads to drop, fixed at compile time: a frozenset of (layer, head).
StaticHeads = frozenset[tuple[int, int]]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Inputs:
    """Embedded tokens, ready for the decoder.

    Attributes:
        x: [B, T, D], image features in their places.
        positions: int32 [A, B, T], rotary positions.
        valid: bool [B, T], real tokens.
        deepstack: [J, B, T, D] or None, added to the hidden state after each of the first J
            layers (zero on text rows).
        prefix: bool [B, T] or None, tokens that see each other in both directions; all others
            are causal. With a cache, a prefix is fed in one call.
    """

    x: jax.Array
    positions: jax.Array
    valid: jax.Array
    deepstack: jax.Array | None = None
    prefix: jax.Array | None = None

    def add_deepstack(self, x: jax.Array, layer: jax.Array | int) -> jax.Array:
        """The hidden state [B, T, D] after ``layer``, with that layer's features."""
        if self.deepstack is None:
            return x
        count = self.deepstack.shape[0]
        features = self.deepstack[jnp.minimum(layer, count - 1)]
        return jnp.where(layer < count, x + features.astype(x.dtype), x)


class Decoder(nnx.Module):
    """Stacked decoder layers between an embedding table and an output head.

    Layers of one kind are one stack: ``layers``, and before it ``dense``, the leading layers
    without experts of a decoder with experts (else None).
    """

    def __init__(self, cfg: DecoderConfig, *, rngs: nnx.Rngs, dtype: jnp.dtype = jnp.float32):
        self.cfg = cfg
        self.embed = Embedding(cfg.vocab, cfg.dim, rngs=rngs, dtype=dtype, scale=cfg.embed_scale)

        def stack(count: int, *, dense: bool) -> Block:
            @nnx.split_rngs(splits=count)
            @nnx.vmap(in_axes=0, out_axes=0)
            def make(rngs: nnx.Rngs) -> Block:
                return Block(cfg, rngs=rngs, dtype=dtype, dense=dense)

            return make(rngs)

        first = cfg.dense_layers
        self.dense = stack(first, dense=True) if first else None
        self.layers = stack(cfg.layers - first, dense=False)
        self.final_norm = cfg.norm(cfg.dim, dtype)
        self.lm_head = (
            None
            if cfg.tied
            else Linear((cfg.dim,), (cfg.vocab,), bias=False, rngs=rngs, dtype=dtype)
        )

    def logits(self, hidden: jax.Array) -> jax.Array:
        """hidden [..., D] (already normalised) -> float32 [..., vocab]."""
        if self.lm_head is not None:
            logits = self.lm_head(hidden)
        else:
            logits = hidden @ self.embed.embedding[...].T
        return soft_cap(logits.astype(jnp.float32), self.cfg.final_softcap)

    def empty_cache(self, batch: int, slots: int) -> KVCache:
        """Cache for ``slots`` tokens in the dtype of the embeddings."""
        c, dtype = self.cfg, self.embed.embedding[...].dtype
        return KVCache.empty(
            c.layers, batch, slots, c.kv_heads, c.head_dim, dtype, value_dim=c.value_dim
        )

    def _stacks(self) -> list[tuple[nnx.GraphDef[Block], Any, slice]]:
        """(structure, stacked parameters, numbers of the layers) of each stack in order."""
        first = self.cfg.dense_layers
        spans = ((self.dense, slice(0, first)), (self.layers, slice(first, self.cfg.layers)))
        return [(*nnx.split(stack), span) for stack, span in spans if stack is not None]

    def _blocks(self) -> Iterator[Block]:
        """Every layer on its own."""
        for graphdef, stacked, span in self._stacks():
            for index in range(span.stop - span.start):
                yield nnx.merge(graphdef, jax.tree.map(lambda p, i=index: p[i], stacked))

    def __call__(
        self,
        inputs: Inputs,
        *,
        cache: KVCache | None = None,
        head_mask: jax.Array | None = None,
        static_heads: StaticHeads = frozenset(),
        tap: Tap | None = None,
    ) -> tuple[jax.Array, KVCache | None, Tapped | None]:
        """Run all layers.

        Args:
            inputs: T embedded tokens of each sample.
            cache: extended by T tokens at its write position; None attends within x.
            head_mask: [L, N] or [B, L, N], multiplies each head's output before the output
                projection (0 removes the head). None is the same program as all ones.
            static_heads: heads removed at compile time; their work is not done, and their
                tapped values are zero. Needs ``cache=None``.
            tap: rows and key sets to reduce. Key sets span the S slots of the cache, if any.

        Returns:
            (hidden [B, T, D] after the final norm, cache, tapped with leading axis L).
        """
        cfg, x = self.cfg, inputs.x
        visible = _visible(inputs, cache)
        cos, sin = rope_tables(inputs.positions, cfg.rope, cfg.head_dim)
        gates = _layer_gates(head_mask, cfg, batch=x.shape[0])
        if static_heads:
            _check_heads(static_heads, cfg)
            if cache is not None:
                raise UserError("static_heads drops keys, so it needs cache=None; use head_mask")
            x, tapped = self._unrolled(inputs, cos, sin, visible, gates, static_heads, tap)
            return self.final_norm(x), None, tapped

        def layer(graphdef: nnx.GraphDef[Block], x: jax.Array, xs: Any) -> tuple[jax.Array, Any]:
            params, (gate, cached, index, window) = xs
            block = nnx.merge(graphdef, params)
            seen = dataclasses.replace(visible, window=window)
            with jax.named_scope("layer"):
                x, kv, tapped = block(x, cos, sin, visible=seen, cached=cached, gate=gate, tap=tap)
                x = inputs.add_deepstack(x, index)
            return x, (kv if cached is not None else None, tapped)

        cached = None if cache is None else (cache.k, cache.v)
        windows = jnp.array(cfg.windows, jnp.int32) if cfg.windows else None
        given = (gates, cached, jnp.arange(cfg.layers), windows)
        outputs = []
        for graphdef, stacked, span in self._stacks():
            xs = stacked, jax.tree.map(lambda a, s=span: _rows(a, s), given)
            x, out = jax.lax.scan(partial(layer, graphdef), x, xs)
            outputs.append(out)
        kv, tapped = _joined(outputs)
        if cache is not None:
            length = cache.length + x.shape[1]
            cache = KVCache(k=kv[0], v=kv[1], valid=visible.valid, length=length)
        return self.final_norm(x), cache, tapped

    def _unrolled(
        self,
        inputs: Inputs,
        cos: jax.Array,
        sin: jax.Array,
        visible: Visible,
        gates: jax.Array,
        drop: StaticHeads,
        tap: Tap | None,
    ) -> tuple[jax.Array, Tapped | None]:
        """Layer by layer with dropped heads cut out of the weights."""
        x = inputs.x
        collected: list[Tapped] = []
        for index, block in enumerate(self._blocks()):
            kept = tuple(h for h in range(self.cfg.heads) if (index, h) not in drop)
            if not kept:
                x = inputs.add_deepstack(block.feed_forward(x), index)
                if tap is not None:
                    collected.append(_no_heads(tap, self.cfg.heads))
                continue
            gate = gates[index]
            if len(kept) < self.cfg.heads:
                block.attn = block.attn.keep(kept)
                gate = gate[:, jnp.array(kept, jnp.int32)]
            window = jnp.asarray(self.cfg.windows[index]) if self.cfg.windows else None
            seen = dataclasses.replace(visible, window=window)
            x, _, tapped = block(x, cos, sin, visible=seen, cached=None, gate=gate, tap=tap)
            x = inputs.add_deepstack(x, index)
            if tapped is not None:
                collected.append(_restore_heads(tapped, kept, self.cfg.heads))
        if not collected:
            return x, None
        return x, jax.tree.map(lambda *leaves: jnp.stack(leaves), *collected)


def _rows(array: jax.Array, span: slice) -> jax.Array:
    """The rows of a stack's layers; all of them is the array itself."""
    return array if span == slice(0, array.shape[0]) else array[span]


def _joined(outputs: Sequence[Any]) -> Any:
    """What the scans of all stacks return, as if they were one."""
    if len(outputs) == 1:
        return outputs[0]
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), *outputs)


def _visible(inputs: Inputs, cache: KVCache | None) -> Visible:
    """What each token sees; by slot of the cache, if there is one."""
    if cache is None:
        zero = jnp.zeros((), jnp.int32)
        return Visible(first=zero, valid=inputs.valid, prefix=inputs.prefix)
    start = (0, cache.length)
    valid = jax.lax.dynamic_update_slice(cache.valid, inputs.valid, start)
    prefix = inputs.prefix
    if prefix is not None:
        prefix = jax.lax.dynamic_update_slice(jnp.zeros_like(valid), prefix, start)
    return Visible(first=cache.length, valid=valid, prefix=prefix)


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
