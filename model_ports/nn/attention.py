"""Attention output, and float32 attention rows at chosen queries (taps).

Axis letters: B batch, T query sequence, S key sequence, N query heads, K key-value heads,
G = N / K, H head dim, Q tapped rows, R key sets. Query head n reads KV head n // G. Values may
have another head dim than queries and keys; outputs then have that one.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from model_ports.sharding import constrain

# Queries are processed in blocks, so that no array of T x S logits for all T exists.
QUERY_BLOCK = 512
LOGITS_BUDGET = 1 << 27


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Visible:
    """Causal visibility by slot, with padding.

    A query sees the valid keys at its own slot and before. A padded query sees itself, so
    its (unused) output is finite.

    Attributes:
        first: int32 scalar, slot of query 0; query t is at slot first + t.
        valid: bool [B, S].
        prefix: bool [B, S] or None; its tokens see each other whatever their order and
            distance (prefix-LM). A prefix is fed in one call.
        window: int32 scalar or None; a query sees its own and the window - 1 valid keys before
            it (padding between them does not count). 0 and None see all.
    """

    first: jax.Array
    valid: jax.Array
    prefix: jax.Array | None = None
    window: jax.Array | None = None

    def rows(self, index: jax.Array) -> jax.Array:
        """Mask bool [B, Q, S] for query indices [B, Q] (relative to the first query)."""
        query = (index + self.first)[:, :, None]
        key = jnp.arange(self.valid.shape[1])[None, None, :]
        seen = key <= query
        if self.window is not None:
            order = jnp.cumsum(self.valid, axis=1)
            gap = self._at(order, query) - order[:, None, :]
            seen &= (gap < self.window) | (self.window == 0)
        if self.prefix is not None:
            seen |= self._at(self.prefix, query) & self.prefix[:, None, :]
        return (seen & self.valid[:, None, :]) | (key == query)

    def _at(self, values: jax.Array, query: jax.Array) -> jax.Array:
        """values [B, S] at slots query [B, Q, 1] -> [B, Q, 1]."""
        slots = jnp.clip(query[..., 0], 0, values.shape[1] - 1)
        return jnp.take_along_axis(values, slots, axis=1)[..., None]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tap:
    """Which attention rows to reduce, and over which keys.

    Attributes:
        rows: int32 [B, Q], query indices into the T tokens of this call. Rows that a sample
            does not use may repeat any index; weight them out afterwards.
        sets: float32 [B, R, S], key weights (0/1, or coverage) of each key set.
        domain: bool [B, S] or None, the keys that compete for the arg-max (None: all visible).
        weights: also return the rows themselves (for figures), [L, B, N, Q, S].
    """

    rows: jax.Array
    sets: jax.Array
    domain: jax.Array | None = None
    weights: bool = dataclasses.field(default=False, metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tapped:
    """Reductions of tapped rows; stacked over layers by the decoder ([L, ...]).

    Attributes:
        mass: float32 [B, N, Q, R], sum of attention times key weight.
        hit: float32 [B, N, Q, R], 1 where the most attended key (lowest slot on a tie) has
            a positive weight in the set.
        top: int32 [B, N, Q], slot of the most attended key.
        weights: float32 [B, N, Q, S] or None.
    """

    mass: jax.Array
    hit: jax.Array
    top: jax.Array
    weights: jax.Array | None


def _grouped(q: jax.Array, kv_heads: int) -> jax.Array:
    """[B, T, N, H] -> [B, K, G*T, H]: one batched matmul per KV head (fast on CPU and TPU)."""
    b, t, n, h = q.shape
    g = n // kv_heads
    return q.reshape(b, t, kv_heads, g, h).transpose(0, 2, 3, 1, 4).reshape(b, kv_heads, g * t, h)


def _ungrouped(x: jax.Array, t: int) -> jax.Array:
    """[B, K, G*T, H] -> [B, T, N, H]."""
    b, k, gt, h = x.shape
    g = gt // t
    return x.reshape(b, k, g, t, h).transpose(0, 3, 1, 2, 4).reshape(b, t, k * g, h)


def soft_cap(x: jax.Array, cap: float | None) -> jax.Array:
    """``cap * tanh(x / cap)``: values stay within (-cap, cap). None leaves x as it is."""
    return x if cap is None else cap * jnp.tanh(x / cap)


def _probabilities(
    q: jax.Array, k: jax.Array, mask: jax.Array, scale: float, softcap: float | None
) -> jax.Array:
    """Float32 softmax rows [B, K, G, T, S] for q [B, T, N, H], k [B, S, K, H], mask [B, T, S]."""
    b, t, n, _ = q.shape
    kv_heads = k.shape[2]
    logits = jnp.matmul(
        _grouped(q, kv_heads), k.transpose(0, 2, 3, 1), preferred_element_type=jnp.float32
    )
    logits = logits.reshape(b, kv_heads, n // kv_heads, t, k.shape[1]) * scale
    logits = soft_cap(logits, softcap)
    logits = jnp.where(mask[:, None, None], logits, jnp.finfo(jnp.float32).min)
    return jax.nn.softmax(logits, axis=-1)


def masked_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: jax.Array,
    scale: float,
    softcap: float | None = None,
) -> jax.Array:
    """Softmax attention with an explicit mask.

    Args:
        q: [B, T, N, H].
        k, v: [B, S, K, H].
        mask: bool, broadcastable to [B, T, S].
        scale: multiplies the logits.
        softcap: bounds the scaled logits, before the mask (``soft_cap``).

    Returns:
        [B, T, N, H], dtype of v. Softmax in float32, then cast, as the reference does.
    """
    b, t, n, _ = q.shape
    kv_heads = k.shape[2]
    mask = jnp.broadcast_to(mask, (b, t, k.shape[1]))
    probs = _probabilities(q, k, mask, scale, softcap).astype(v.dtype)
    probs = probs.reshape(b, kv_heads, (n // kv_heads) * t, k.shape[1])
    return _ungrouped(jnp.matmul(probs, v.transpose(0, 2, 1, 3)), t)


def _in_query_blocks(
    q: jax.Array, block: Callable[[jax.Array, jax.Array], jax.Array], size: int
) -> jax.Array:
    """Run ``block(rows [size], q [B, size, N, H]) -> [B, size, N, H]`` over blocks of queries."""
    b, t, n, h = q.shape
    if t <= size:
        return block(jnp.arange(t), q)
    blocks = -(-t // size)
    padded = jnp.pad(q, ((0, 0), (0, blocks * size - t), (0, 0), (0, 0)))
    stacked = padded.reshape(b, blocks, size, n, h).swapaxes(0, 1)
    rows = jnp.arange(blocks * size).reshape(blocks, size)
    out = jax.lax.map(lambda args: block(*args), (rows, stacked))
    return out.swapaxes(0, 1).reshape(b, blocks * size, n, -1)[:, :t]


def causal_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    visible: Visible,
    scale: float,
    softcap: float | None = None,
) -> jax.Array:
    """Attention under ``visible`` in query blocks.

    Shapes: q [B, T, N, H], k and v [B, S, K, H] -> [B, T, N, H].
    """

    def block(rows: jax.Array, q_block: jax.Array) -> jax.Array:
        mask = visible.rows(jnp.broadcast_to(rows, (q.shape[0], rows.shape[0])))
        return masked_attention(q_block, k, v, mask, scale, softcap)

    return _in_query_blocks(q, block, QUERY_BLOCK)


def attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    visible: Visible,
    cached: tuple[jax.Array, jax.Array] | None,
    gate: jax.Array,
    tap: Tap | None,
    scale: float,
    softcap: float | None = None,
) -> tuple[jax.Array, tuple[jax.Array, jax.Array], Tapped | None]:
    """What every decoder's attention does between its input and output projections.

    Args:
        q: [B, T, N, H], normed and rotated. k, v: [B, T, K, H], of the same tokens.
        cached: keys and values [B, S, K, H] to extend at slot ``visible.first``.
        gate: [B or 1, N], multiplies each head's output.

    Returns:
        (output of the heads [B, T, N, H], (k, v) with the cached ones, tapped).
    """
    q = constrain(q, "batch", None, "heads", None)
    k = constrain(k, "batch", None, "kv_heads", None)
    v = constrain(v, "batch", None, "kv_heads", None)
    if cached is not None:
        start = (0, visible.first, 0, 0)
        k = jax.lax.dynamic_update_slice(cached[0], k.astype(cached[0].dtype), start)
        v = jax.lax.dynamic_update_slice(cached[1], v.astype(cached[1].dtype), start)
    z = causal_attention(q, k, v, visible, scale, softcap)
    z = z * gate[:, None, :, None].astype(z.dtype)
    tapped = None if tap is None else tap_rows(q, k, visible, tap, scale, softcap)
    return constrain(z, "batch", None, "heads", None), (k, v), tapped


def full_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, valid: jax.Array, scale: float
) -> jax.Array:
    """Every query sees every valid key (bool [B, S]); shapes as in ``causal_attention``.

    Query blocks shrink as B and S grow, so that the logits of one block stay near
    LOGITS_BUDGET values.
    """
    rows = LOGITS_BUDGET // (q.shape[0] * q.shape[2] * k.shape[1])
    size = min(QUERY_BLOCK, max(rows // 64 * 64, 64))

    def block(_: jax.Array, q_block: jax.Array) -> jax.Array:
        return masked_attention(q_block, k, v, valid[:, None, :], scale)

    return _in_query_blocks(q, block, size)


def tap_rows(
    q: jax.Array,
    k: jax.Array,
    visible: Visible,
    tap: Tap,
    scale: float,
    softcap: float | None = None,
) -> Tapped:
    """Recompute the tapped rows in float32 and reduce them over the key sets.

    Args:
        q: [B, T, N, H], after norm and rotary embedding.
        k: [B, S, K, H], likewise.
    """
    b, _, n, _ = q.shape
    s = k.shape[1]
    rows = jnp.take_along_axis(q, tap.rows[:, :, None, None], axis=1).astype(jnp.float32)
    mask = visible.rows(tap.rows)
    probs = _probabilities(rows, k.astype(jnp.float32), mask, scale, softcap)
    probs = probs.reshape(b, n, tap.rows.shape[1], s)
    mass = jnp.einsum("bnqs,brs->bnqr", probs, tap.sets.astype(jnp.float32))
    rivals = probs if tap.domain is None else jnp.where(tap.domain[:, None, None], probs, -1.0)
    top = jnp.argmax(rivals, axis=-1).astype(jnp.int32)
    # sets[b, r, top[b, n, q]] > 0, with the head and row axes flattened for the gather.
    flat = jnp.broadcast_to(top.reshape(b, 1, -1), (b, tap.sets.shape[1], top[0].size))
    chosen = jnp.take_along_axis(tap.sets, flat, axis=2) > 0
    hit = chosen.reshape(b, -1, n, tap.rows.shape[1]).transpose(0, 2, 3, 1)
    return Tapped(
        mass=mass,
        hit=hit.astype(jnp.float32),
        top=top,
        weights=probs if tap.weights else None,
    )
