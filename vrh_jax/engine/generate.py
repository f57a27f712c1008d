"""Greedy generation with a key-value cache: prompts are embedded once, then answered under
any number of head masks by one jitted program.

Axis letters: A position axes, B batch, T prompt slots, D model dim, M new tokens.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from model_ports.decoder import Inputs
from model_ports.vlm import VLM, Batch
from vrh_jax.engine.distributed import replicated


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Embedded:
    """Padded prompts after the vision tower.

    Attributes:
        inputs: T tokens of each sample, ready for the decoder.
        next_position: int32 [B], rotary position of the first answer token.
    """

    inputs: Inputs
    next_position: jax.Array


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


@partial(jax.jit, static_argnames=("graphdef",))
def _embed(params: Any, batch: Batch, *, graphdef: nnx.GraphDef[VLM]) -> Embedded:
    model = nnx.merge(graphdef, params)
    return Embedded(model.embed(batch), batch.next_position)


def embed(graphdef: nnx.GraphDef[VLM], params: Any, batch: Batch) -> Embedded:
    """Token and image embeddings of a batch; this is all that reads its images."""
    return _embed(params, batch, graphdef=graphdef)


@partial(jax.jit, static_argnames=("graphdef", "max_new", "eos_ids"))
def _generate(
    params: Any,
    batch: Embedded,
    head_mask: jax.Array | None,
    *,
    graphdef: nnx.GraphDef[VLM],
    max_new: int,
    eos_ids: tuple[int, ...],
) -> Generated:
    model = nnx.merge(graphdef, params)
    decoder = model.decoder
    inputs = batch.inputs
    b, t, _ = inputs.x.shape
    eos = jnp.array(eos_ids, jnp.int32)
    hidden, cache, _ = decoder(
        inputs,
        cache=decoder.empty_cache(b, t + max_new),
        head_mask=head_mask,
    )
    last = jnp.max(jnp.where(inputs.valid, jnp.arange(t), -1), axis=1)
    final = jnp.take_along_axis(hidden, last[:, None, None], axis=1)
    start = batch.next_position
    axes = inputs.positions.shape[0]

    def pick(hidden: jax.Array) -> jax.Array:
        return jnp.argmax(decoder.logits(hidden)[:, 0], axis=-1).astype(jnp.int32)

    def more(state: _State) -> jax.Array:
        return (state.step < max_new) & ~jnp.all(state.done)

    def step(state: _State) -> _State:
        out = state.out.at[:, state.step].set(jnp.where(state.done, -1, state.token))
        position = jnp.broadcast_to((start + state.step)[None, :, None], (axes, b, 1))
        hidden, cache, _ = decoder(
            Inputs(decoder.embed(state.token[:, None]), position, jnp.ones((b, 1), bool)),
            cache=state.cache,
            head_mask=head_mask,
        )
        token = pick(hidden)
        done = state.done | jnp.isin(token, eos)
        return _State(state.step + 1, token, done, out, cache)

    first = pick(final)
    state = _State(
        step=jnp.zeros((), jnp.int32),
        token=first,
        done=jnp.isin(first, eos),
        out=jnp.full((b, max_new), -1, jnp.int32),
        cache=cache,
    )
    out = jax.lax.while_loop(more, step, state).out
    return replicated(Generated(tokens=out, lengths=jnp.sum(out >= 0, axis=1)))


def generate(
    graphdef: nnx.GraphDef[VLM],
    params: Any,
    batch: Batch | Embedded,
    *,
    max_new: int,
    eos_ids: Sequence[int],
    head_mask: jax.Array | None = None,
) -> Generated:
    """Greedy answers of a batch, up to ``max_new`` tokens each.

    Args:
        graphdef, params: of ``Model``; params may be sharded.
        batch: padded prompts, embedded already or not; rows are independent of each other and
            of the padding side.
        eos_ids: any of these ends an answer and is not part of it.
        head_mask: [L, N] or [B, L, N], active in prefill and decoding.
    """
    embedded = embed(graphdef, params, batch) if isinstance(batch, Batch) else batch
    return _generate(
        params,
        embedded,
        head_mask,
        graphdef=graphdef,
        max_new=max_new,
        eos_ids=tuple(int(i) for i in eos_ids),
    )
