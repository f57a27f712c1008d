"""Where chosen heads look while a model answers one sample: a weight per visual token.

Axis letters: L layers, B batch, N query heads, Q answer rows, S keys, V visual tokens.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model_ports.nn.attention import Tap
from model_ports.prompt import offset
from model_ports.vlm import VLM, Batch
from vrh_jax.config import ScoringSettings
from vrh_jax.engine.batching import Task, make_batch, prepare
from vrh_jax.engine.capture import Request, key_sets, make_request
from vrh_jax.engine.distributed import place, place_batch, replicated, using
from vrh_jax.engine.session import Session
from vrh_jax.heads.masks import Head, head_mask


def attention_map(
    session: Session, task: Task, heads: Iterable[Head], settings: ScoringSettings
) -> tuple[np.ndarray, np.ndarray] | None:
    """Attention of the answer rows to every visual token, mean over rows and the given heads.

    Nothing is masked; the sample is answered first. Of a tiled image the tiles are returned,
    not the thumbnail, since both cover the same pixels.

    Returns:
        (rectangles float64 [V, 4] in stored pixels, weights float32 [V]); None for an
        unreadable image, a text without image or an empty answer.
    """
    ready = prepare(session.model.processor, task)
    if ready.prompt is None or not len(ready.prompt.grid):
        return None
    embedded = session.embed([ready.prompt])
    (answer,) = session.answer(embedded, 1, task.prompt.max_new)
    scored = key_sets(session.model.processor, ready.prompt, task.sample, answer.tokens, settings)
    if not scored.chosen:
        return None
    rows = 1 if session.mesh is None else session.mesh.shape["data"]
    batch = make_batch([scored.prompt], rows=rows, multiple=session.batch.bucket)
    request = make_request([scored] * rows, batch, settings)
    decoder = session.model.decoder
    chosen = 1 - head_mask(heads, decoder.layers, decoder.heads)
    with using(session.mesh):
        weights = _mean_rows(
            session.model.params,
            place_batch(batch, session.mesh),
            place(request, session.mesh),
            jnp.asarray(chosen),
            graphdef=session.model.graphdef,
        )
    grid = ready.prompt.grid
    first = offset(len(scored.prompt), batch.tokens.shape[1], "left")
    shown = grid.view > 0 if (grid.view > 0).any() else grid.view == 0
    return grid.rect[shown], np.asarray(weights)[0, first + grid.slot[shown]]


@partial(jax.jit, static_argnames=("graphdef",))
def _mean_rows(
    params: Any, batch: Batch, request: Request, chosen: jax.Array, *, graphdef: nnx.GraphDef[VLM]
) -> jax.Array:
    """Attention float32 [B, S], mean over rows that count and over chosen heads [L, N]."""
    model = nnx.merge(graphdef, params)
    tap = Tap(rows=request.rows, sets=request.sets, weights=True)
    _, _, tapped = model.decoder(model.embed(batch), tap=tap)
    if tapped is None or tapped.weights is None:
        raise ValueError("the decoder returned no rows for its tap")
    total = jnp.einsum("lbnqs,bq,ln->bs", tapped.weights, request.weight, chosen)
    count = jnp.sum(request.weight, axis=1, keepdims=True) * jnp.sum(chosen)
    return replicated(total / jnp.maximum(count, 1.0))
