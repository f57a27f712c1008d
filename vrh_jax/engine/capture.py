"""Head scores of a batch: one forward over prompt and answer, with taps.

Axis letters: B batch, T sequence (= keys S), Q answer rows, L layers, N query heads.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model_ports.nn.attention import Tap
from model_ports.port import Processor
from model_ports.prompt import Prompt, bucket, offset
from model_ports.text import token_slots
from model_ports.vlm import VLM, Batch
from vrh_jax.answers.clean import answer_spans, strip_thoughts
from vrh_jax.config import ScoringSettings
from vrh_jax.data.sample import Sample
from vrh_jax.engine.distributed import replicated
from vrh_jax.heads.scoring import DOMAIN, REGION, SCORES, Context, reduce_rows

# Answer rows are padded to a multiple of this.
ROWS = 8


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Request:
    """Which rows of a padded batch are read, and over which keys.

    Attributes:
        rows: int32 [B, Q] slots.
        weight: float32 [B, Q], 1 for rows that count.
        generated: int32 [B, Q], the answer token that belongs to each row.
        sets: float32 [B, 2, S], region and domain.
        domain: bool [B, S] or None, keys that compete for the arg-max.
    """

    rows: jax.Array
    weight: jax.Array
    generated: jax.Array
    sets: jax.Array
    domain: jax.Array | None


@dataclasses.dataclass(frozen=True)
class Scored:
    """A prompt with the answer that the model gave, and its key sets on the host.

    Attributes:
        prompt: extended by the answer.
        start: P, number of tokens before the answer.
        answer: token ids before the end token.
        chosen: indices into the answer of the tokens that count.
        region, domain: float32 [P + m], key weights.
    """

    prompt: Prompt
    start: int
    answer: tuple[int, ...]
    chosen: tuple[int, ...]
    region: np.ndarray
    domain: np.ndarray


def _box_weights(prompt: Prompt, sample: Sample, settings: ScoringSettings) -> np.ndarray:
    """Weight of every visual token under the box; at least one token is positive."""
    grid = prompt.grid
    if sample.box is None:
        return np.zeros(len(grid), np.float32)
    tiles = sorted({int(v) for v in grid.view} - {0})
    # An untiled image has the whole view only, which is then its own tile.
    views = {"all": None, "whole": [0], "tiles": tiles or None}[settings.views]
    weights = grid.cover(sample.box, rule=settings.region, views=views)
    if not weights.any():
        # A box smaller than a cell may hold no cell centre: the cell it covers most counts.
        covered = grid.cover(sample.box, rule="coverage", views=views)
        weights = (covered == covered.max(initial=0.0)).astype(np.float32) * (covered > 0)
    return weights


def _after_thoughts(processor: Processor, answer: Sequence[int]) -> list[int]:
    """Indices of the tokens that are not thought; without a thinking block, all of them.

    White space between the block and the answer does not count either.
    """
    if strip_thoughts(whole := processor.decode(answer)) == whole:
        return list(range(len(answer)))
    pieces = [processor.decode([token]) for token in answer]
    ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
    spans = answer_spans("".join(pieces))
    kept = [
        i
        for i, (piece, end) in enumerate(zip(pieces, ends, strict=True))
        if any(start < end and end - len(piece) < stop for start, stop in spans)
    ]
    blank = itertools.takewhile(lambda i: not pieces[i].strip(), kept)
    return kept[len(list(blank)) :]


def _counted(
    processor: Processor, answer: Sequence[int], settings: ScoringSettings
) -> tuple[int, ...]:
    """Indices of the answer's tokens whose rows are read."""
    kept = list(range(len(answer)))
    if settings.span == "answer":
        kept = _after_thoughts(processor, answer)
    if settings.tokens == "first":
        return tuple(kept[:1])
    if settings.tokens == "coords":
        texts = {i: processor.decode([answer[i]]) for i in kept}
        return tuple(i for i, text in texts.items() if any(c.isdigit() for c in text))
    return tuple(kept)


def key_sets(
    processor: Processor,
    prompt: Prompt,
    sample: Sample,
    answer: Sequence[int],
    settings: ScoringSettings,
) -> Scored:
    """Teacher-forcing input and key sets of a sample.

    Text and image are two kinds of key set: the needle's tokens within the prompt, or the
    visual tokens under the box within all visual tokens.
    """
    size = len(prompt) + len(answer)
    region, domain = np.zeros(size, np.float32), np.zeros(size, np.float32)
    if sample.needle:
        region[token_slots(processor.tokenizer, prompt, sample.needle)] = 1
        domain[: len(prompt)] = 1
    else:
        region[prompt.grid.slot] = _box_weights(prompt, sample, settings)
        domain[prompt.grid.slot] = 1
    return Scored(
        prompt=prompt.extend(answer),
        start=len(prompt),
        answer=tuple(answer),
        chosen=_counted(processor, answer, settings),
        region=region,
        domain=domain,
    )


def make_request(scored: Sequence[Scored], batch: Batch, settings: ScoringSettings) -> Request:
    """Rows and key sets of a collated (left-padded) batch, numpy arrays.

    Rows of the batch beyond ``scored`` get no weight.
    """
    b, t = batch.tokens.shape
    q = bucket(max([1, *(len(s.chosen) for s in scored)]), ROWS)
    rows = np.zeros((b, q), np.int32)
    weight = np.zeros((b, q), np.float32)
    generated = np.full((b, q), -1, np.int32)
    sets = np.zeros((b, 2, t), np.float32)
    shift = -1 if settings.rows == "pred" else 0
    for i, one in enumerate(scored):
        first = offset(len(one.prompt), t, "left")
        n = len(one.chosen)
        rows[i, :n] = [first + one.start + j + shift for j in one.chosen]
        weight[i, :n] = 1
        generated[i, :n] = [one.answer[j] for j in one.chosen]
        sets[i, REGION, first : first + len(one.region)] = one.region
        sets[i, DOMAIN, first : first + len(one.domain)] = one.domain
    rivals = sets[:, DOMAIN] > 0 if settings.argmax_keys == "visual" else None
    return Request(
        rows=rows,  # type: ignore[arg-type]
        weight=weight,  # type: ignore[arg-type]
        generated=generated,  # type: ignore[arg-type]
        sets=sets,  # type: ignore[arg-type]
        domain=rivals,  # type: ignore[arg-type]
    )


@partial(jax.jit, static_argnames=("graphdef",))
def capture(
    params: Any,
    batch: Batch,
    request: Request,
    head_mask: jax.Array | None = None,
    *,
    graphdef: nnx.GraphDef[VLM],
) -> dict[str, jax.Array]:
    """Every score of SCORES, float32 [B, L, N], means over the rows that count."""
    model = nnx.merge(graphdef, params)
    tap = Tap(rows=request.rows, sets=request.sets, domain=request.domain)
    _, _, tapped = model.decoder(model.embed(batch), head_mask=head_mask, tap=tap)
    if tapped is None:
        raise ValueError("the decoder returned no rows for its tap")
    layers, b, n, q = tapped.top.shape
    top = tapped.top.transpose(1, 0, 2, 3).reshape(b, -1)
    attended = jnp.take_along_axis(batch.tokens, top, axis=1).reshape(b, layers, n, q)
    copied = attended.transpose(1, 0, 2, 3) == request.generated[None, :, None]
    context = Context(keys=jnp.sum(request.sets[:, REGION], axis=-1), copied=copied)
    return replicated(
        {
            name: reduce_rows(score(tapped, context), request.weight)
            for name, score in SCORES.items()
        }
    )
