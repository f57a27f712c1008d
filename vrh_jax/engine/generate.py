"""Greedy generation with a key-value cache, as one jitted program.

Axis letters: B batch, T prompt slots, M new tokens.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from model_ports.vlm import VLM, Batch


class Generated(NamedTuple):
    """Greedy answers.

    Attributes:
        tokens: int32 [B, M]; after a row's end token everything is -1.
        lengths: int32 [B], number of tokens before the end token.
    """

    tokens: jax.Array
    lengths: jax.Array


class _State(NamedTuple):
    step: jax.Array
    token: jax.Array
    done: jax.Array
    out: jax.Array
    cache: Any


@partial(jax.jit, static_argnames=("graphdef", "max_new", "eos_ids"))
def _generate(
    params: Any,
    batch: Batch,
    head_mask: jax.Array | None,
    *,
    graphdef: nnx.GraphDef[VLM],
    max_new: int,
    eos_ids: tuple[int, ...],
) -> Generated:
    model = nnx.merge(graphdef, params)
    decoder = model.decoder
    b, t = batch.tokens.shape
    eos = jnp.array(eos_ids, jnp.int32)
    hidden, cache, _ = decoder(
        model.embed(batch),
        batch.positions,
        batch.valid,
        cache=decoder.empty_cache(b, t + max_new),
        head_mask=head_mask,
    )
    last = jnp.max(jnp.where(batch.valid, jnp.arange(t), -1), axis=1)
    final = jnp.take_along_axis(hidden, last[:, None, None], axis=1)
    start = batch.next_position
    axes = batch.positions.shape[0]

    def pick(hidden: jax.Array) -> jax.Array:
        return jnp.argmax(decoder.logits(hidden)[:, 0], axis=-1).astype(jnp.int32)

    def more(state: _State) -> jax.Array:
        return (state.step < max_new) & ~jnp.all(state.done)

    def step(state: _State) -> _State:
        ended = state.done | jnp.isin(state.token, eos)
        out = state.out.at[:, state.step].set(jnp.where(ended, -1, state.token))
        position = jnp.broadcast_to((start + state.step)[None, :, None], (axes, b, 1))
        hidden, cache, _ = decoder(
            decoder.embed(state.token[:, None]),
            position,
            jnp.ones((b, 1), bool),
            cache=state.cache,
            head_mask=head_mask,
        )
        return _State(state.step + 1, pick(hidden), ended, out, cache)

    first = pick(final)
    state = _State(
        step=jnp.zeros((), jnp.int32),
        token=first,
        done=jnp.isin(first, eos),
        out=jnp.full((b, max_new), -1, jnp.int32),
        cache=cache,
    )
    out = jax.lax.while_loop(more, step, state).out
    return Generated(tokens=out, lengths=jnp.sum(out >= 0, axis=1))


def generate(
    graphdef: nnx.GraphDef[VLM],
    params: Any,
    batch: Batch,
    *,
    max_new: int,
    eos_ids: Sequence[int],
    head_mask: jax.Array | None = None,
) -> Generated:
    """Greedy answers of a batch, up to ``max_new`` tokens each.

    Args:
        graphdef, params: of ``Model``; params may be sharded.
        batch: padded prompts; rows are independent of each other and of the padding side.
        eos_ids: any of these ends an answer and is not part of it.
        head_mask: [L, N] or [B, L, N], active in prefill and decoding.
    """
    return _generate(
        params,
        batch,
        head_mask,
        graphdef=graphdef,
        max_new=max_new,
        eos_ids=tuple(int(i) for i in eos_ids),
    )
