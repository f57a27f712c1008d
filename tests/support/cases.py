"""A port and its reference on one batch of prompts, with greedy answers with and without heads.

The reference reads each sample once, alone, with its answer: that gives the logits of every row,
and its greedy tokens too (by induction: the port's token at each step is the arg-max of the
reference's row, given the same tokens before it). The port runs padded batches of one length, so
that its vision side and each program of its decoder are compiled once.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from support.parity import assert_close, assert_within, zeroed_heads
from support.vlm_checks import Sample, random_heads, rows

from model_ports.decoder import Inputs
from model_ports.nn.attention import Tap
from model_ports.port import Port, abstract_model
from model_ports.prompt import Prompt, Side, bucket, collate, offset
from vrh_jax.engine.generate import Embedded, embed, generate

STEPS = 12
HEADS = 5
Box = tuple[float, float, float, float]


@dataclasses.dataclass(frozen=True)
class Run:
    """What follows from a head mask.

    Attributes:
        mask: [L, N].
        answers: STEPS greedy tokens of the port for each sample.
        prompts: with their answers.
        expected: the reference's logits [T, vocab] of each of ``prompts``.
    """

    mask: np.ndarray
    answers: list[list[int]]
    prompts: list[Prompt]
    expected: list[np.ndarray]


@dataclasses.dataclass(frozen=True)
class Case:
    """A pair, its samples, and two runs: with all heads, and without random ones."""

    pair: Any
    samples: Sequence[Sample]
    length: int
    plain: Run
    masked: Run

    @classmethod
    def make(cls, pair: Any, samples: Sequence[Sample], seed: int) -> "Case":
        length = bucket(max(len(prompt) for prompt, _ in samples) + STEPS, 16)
        runs = [
            _run(pair, samples, length, heads) for heads in ([], random_heads(pair, HEADS, seed))
        ]
        return cls(pair, samples, length, *runs)

    def embedded(self, prompts: Sequence[Prompt], side: Side) -> Embedded:
        return _embedded(self.pair, prompts, self.length, side)

    def logits(self, run: Run, side: Side, mask: np.ndarray | None, **options: Any) -> np.ndarray:
        """[B, T, vocab] of the port, for prompts with answers."""
        inputs = self.embedded(run.prompts, side).inputs
        out, _ = _forward(self.pair.graphdef, self.pair.params, inputs, mask, **options)
        return np.asarray(out)


@partial(jax.jit, static_argnames=("graphdef", "drop"))
def _forward(
    graphdef: Any,
    params: Any,
    inputs: Inputs,
    mask: Any = None,
    tap: Tap | None = None,
    drop: frozenset[tuple[int, int]] = frozenset(),
) -> tuple[jax.Array, Any]:
    """(logits [B, T, vocab], tapped)."""
    decoder = nnx.merge(graphdef, params).decoder
    hidden, _, tapped = decoder(inputs, head_mask=mask, static_heads=drop, tap=tap)
    return decoder.logits(hidden), tapped


@partial(jax.jit, static_argnames=("graphdef", "slots"))
def _prefill(graphdef: Any, params: Any, inputs: Inputs, slots: int) -> Any:
    decoder = nnx.merge(graphdef, params).decoder
    return decoder(inputs, cache=decoder.empty_cache(inputs.x.shape[0], slots))[1]


@partial(jax.jit, static_argnames="graphdef")
def _decode(graphdef: Any, params: Any, token: Any, position: Any, cache: Any) -> Any:
    """(logits [B, vocab] after one more token of each sample, cache)."""
    decoder = nnx.merge(graphdef, params).decoder
    valid = jnp.ones(token.shape, bool)
    hidden, cache, _ = decoder(Inputs(decoder.embed(token), position, valid), cache=cache)
    return decoder.logits(hidden)[:, 0], cache


def _embedded(pair: Any, prompts: Sequence[Prompt], length: int, side: Side) -> Embedded:
    return embed(pair.graphdef, pair.params, collate(prompts, side=side, length=length))


def _greedy(pair: Any, batch: Embedded, mask: np.ndarray) -> list[list[int]]:
    made = generate(
        pair.graphdef, pair.params, batch, max_new=STEPS, eos_ids=[], head_mask=jnp.asarray(mask)
    )
    answers: list[list[int]] = np.asarray(made.tokens).tolist()
    return answers


def _run(
    pair: Any, samples: Sequence[Sample], length: int, heads: Sequence[tuple[int, int]]
) -> Run:
    cfg = pair.config.decoder
    mask = np.ones((cfg.layers, cfg.heads), np.float32)
    for head in heads:
        mask[head] = 0
    batch = _embedded(pair, [prompt for prompt, _ in samples], length, "left")
    answers = _greedy(pair, batch, mask)
    prompts = [p.extend(a) for (p, _), a in zip(samples, answers, strict=True)]
    with zeroed_heads(pair.projections(), heads, cfg.value_dim):
        expected = [
            pair.forward(prompt, images).logits[0].numpy()
            for prompt, (_, images) in zip(prompts, samples, strict=True)
        ]
    return Run(mask, answers, prompts, expected)


def check_logits(case: Case, run: Run, side: Side, mask: np.ndarray | None) -> None:
    """Every row of a padded batch of prompts with answers, to 1e-4 of the scale."""
    logits = case.logits(run, side, mask)
    for row, (prompt, expected) in enumerate(zip(run.prompts, run.expected, strict=True)):
        assert expected.std() > 0.5  # the weights are wide enough to show a mistake
        assert_close(rows(logits[row], prompt, side), expected, 1e-4, f"logits of sample {row}")


def check_greedy(case: Case, side: Side) -> None:
    """Greedy tokens are the reference's, with all heads and without some."""
    batch = case.embedded([prompt for prompt, _ in case.samples], side)
    for run in (case.plain, case.masked):
        assert _greedy(case.pair, batch, run.mask) == run.answers
        for answer, logits in zip(run.answers, run.expected, strict=True):
            assert logits[-STEPS - 1 : -1].argmax(-1).tolist() == answer
    assert len({t for answer in case.plain.answers for t in answer}) > 8  # not one for ever
    assert case.plain.answers != case.masked.answers


def check_masked(case: Case) -> None:
    """Heads matter; a mask of ones changes no bit; heads cut out at compile time, those of a whole
    layer among them, are masked heads."""
    run = case.masked
    check_logits(case, run, "left", run.mask)
    plain, masked = (case.logits(run, "left", mask) for mask in (None, run.mask))
    assert np.array_equal(plain, case.logits(run, "left", np.ones_like(run.mask)))
    more = run.mask.copy()
    more[1] = 0
    drop = frozenset((int(layer), int(head)) for layer, head in np.argwhere(more == 0))
    traced = case.logits(run, "left", more)
    cut = case.logits(run, "left", None, drop=drop)
    for row, prompt in enumerate(run.prompts):
        a, b, c, d = (rows(out[row], prompt, "left") for out in (cut, traced, masked, plain))
        assert_close(a, b, 1e-5, "static heads")
        assert min(np.abs(b - c).max(), np.abs(c - d).max()) > 0.1


def check_cached(case: Case, side: Side) -> None:
    """Every cached step equals a whole forward; positions go on after the images'."""
    pair, run = case.pair, case.plain
    every = case.logits(run, side, None)
    prompts = [prompt for prompt, _ in case.samples]
    batch = case.embedded(prompts, side)
    axes, b, t = batch.inputs.positions.shape
    cache = _prefill(pair.graphdef, pair.params, batch.inputs, t + STEPS)
    for step in range(STEPS):
        token = np.array([[answer[step]] for answer in run.answers], np.int32)
        position = np.broadcast_to(batch.next_position[None, :, None] + step, (axes, b, 1))
        logits, cache = _decode(pair.graphdef, pair.params, token, position, cache)
        for row, prompt in enumerate(prompts):
            expected = rows(every[row], run.prompts[row], side)[len(prompt) + step]
            assert_close(logits[row], expected, 1e-4, f"step {step} of sample {row}")


def check_attention(case: Case, boxes: Sequence[tuple[Box, int] | None], side: Side) -> None:
    """Attention, region mass and arg-max of rows pred(i) = P + i - 1 and own(i) = P + i of the
    answers, for every layer and head, against eager attention in double precision.

    Args:
        boxes: of each sample, and the image that it is in; None without images.
    """
    pair, run, b, t = case.pair, case.plain, len(boxes), case.length
    index, sets = np.zeros((b, 2 * STEPS), np.int32), np.zeros((b, 2, t), np.float32)
    starts = [offset(len(prompt), t, side) for prompt in run.prompts]
    for row, (start, (prompt, _), where) in enumerate(
        zip(starts, case.samples, boxes, strict=True)
    ):
        own = start + len(prompt) + np.arange(STEPS)
        index[row] = [*(own - 1), *own]
        if where:
            sets[row, 0, start + prompt.grid.slot] = prompt.grid.cover(where[0], image=where[1])
            sets[row, 1, start + prompt.grid.slot] = 1
    covered = sets.sum(2)[[where is not None for where in boxes]]
    assert (covered[:, 0] >= 1).all()
    assert (covered[:, 0] < covered[:, 1]).any()
    inputs = case.embedded(run.prompts, side).inputs
    tap = Tap(rows=index, sets=sets, weights=True)  # type: ignore[arg-type]
    _, tapped = _forward(pair.graphdef, pair.params, inputs, None, tap)
    for row, start in enumerate(starts):
        if boxes[row] is None:
            continue
        prompt, images = run.prompts[row], case.samples[row][1]
        keys = slice(start, start + len(prompt))
        weights = np.asarray(pair.attentions(prompt, images))
        chosen = weights[:, :, index[row] - start]  # [L, N, Q, T]
        expected = np.einsum("lnqs,rs->lnqr", chosen, sets[row][:, keys].astype(float))
        assert expected[..., 0].max() > 0.05
        got = jax.tree.map(lambda leaf, row=row: np.asarray(leaf)[:, row], tapped)
        assert_close(got.weights[..., keys], chosen, 1e-4, f"attention of sample {row}")
        assert_within(got.mass, expected, 1e-5, f"region mass of sample {row}")
        top = chosen.argmax(-1) + start
        assert np.array_equal(got.top, top)
        hit = np.stack([sets[row][r][top] > 0 for r in range(2)], -1)
        assert np.array_equal(got.hit > 0, hit)


def decoder_program(case: Case, port: Port, repeat: int) -> int:
    """Lines of the lowered decoder with its layers ``repeat`` times."""
    config = case.pair.config
    cfg = config.decoder
    deep = dataclasses.replace(cfg, layers=cfg.layers * repeat, windows=cfg.windows * repeat)
    graphdef, abstract = abstract_model(port, dataclasses.replace(config, decoder=deep))
    inputs = case.embedded(case.plain.prompts, "left").inputs
    return _forward.lower(graphdef, abstract, inputs).as_text().count("\n")


def check_bfloat16(case: Case, port: Port) -> None:
    """Features and hidden states keep the dtype of the weights; logits are float32."""
    graphdef, abstract = abstract_model(port, case.pair.config, jnp.bfloat16)
    batch = collate(case.plain.prompts)

    def run(params: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        model = nnx.merge(graphdef, params)
        hidden, _, _ = model.decoder(model.embed(batch))
        return model.features(batch.images), hidden, model.decoder.logits(hidden)

    dtypes = [out.dtype.name for out in jax.eval_shape(run, abstract)]
    assert dtypes == ["bfloat16", "bfloat16", "float32"]
