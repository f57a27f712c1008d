"""What every vision-language port is tested for as a whole, against its reference.

A pair is the port and the reference with the same weights (``support.qwen25.Pair`` and its
kin); samples are (prompt, images).
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx
from PIL import Image
from support.parity import assert_close, textured_image, zeroed_heads

from model_ports.decoder import Inputs
from model_ports.nn.attention import Tap, Visible
from model_ports.nn.rope import rope_tables
from model_ports.prompt import Prompt, Side, collate, offset
from vrh_jax.engine.generate import generate

Sample = tuple[Prompt, list[Image.Image]]
# Sizes of the images of each sample, the text, and whether the images come first.
Spec = tuple[tuple[tuple[int, int], ...], str, bool]


@partial(jax.jit, static_argnames="graphdef")
def forward(graphdef, params, batch, head_mask=None, tap=None):
    """(logits [B, T, vocab], tapped)."""
    model = nnx.merge(graphdef, params)
    hidden, _, tapped = model.decoder(model.embed(batch), head_mask=head_mask, tap=tap)
    return model.decoder.logits(hidden), tapped


@partial(jax.jit, static_argnames=("graphdef", "slots"))
def prefill(graphdef, params, batch, slots):
    """The cache after the prompts, with room for ``slots`` tokens."""
    model = nnx.merge(graphdef, params)
    cache = model.decoder.empty_cache(batch.tokens.shape[0], slots)
    return model.decoder(model.embed(batch), cache=cache)[1]


@partial(jax.jit, static_argnames="graphdef")
def decode(graphdef, params, token, position, cache):
    """(logits [B, vocab] after one more token of each sample, cache)."""
    decoder = nnx.merge(graphdef, params).decoder
    valid = np.ones(token.shape, bool)
    hidden, cache, _ = decoder(Inputs(decoder.embed(token), position, valid), cache=cache)
    return decoder.logits(hidden)[:, 0], cache


def rows(batched: Any, prompt: Prompt, side: Side) -> np.ndarray:
    """A sample's real tokens, from a batched array without its batch axis."""
    start = offset(len(prompt), batched.shape[0], side)
    return np.asarray(batched)[start : start + len(prompt)]


def make_samples(pair: Any, specs: Sequence[Spec]) -> list[Sample]:
    """Prompts with textured images."""
    out = []
    for number, (sizes, text, image_first) in enumerate(specs):
        images = [textured_image(*size, seed=10 * number + i) for i, size in enumerate(sizes)]
        out.append((pair.processor.prepare(text, images, image_first=image_first), images))
    return out


def check_layer(pair: Any, prompt: Prompt, layer: int, own: slice) -> None:
    """One decoder layer and its rotary tables, on random activations at a prompt's positions.

    Args:
        own: the entries of the reference's tables that are not repetitions.
    """
    text, cfg = pair.reference.model.language_model, pair.config.decoder
    positions = prompt.positions[:, None]
    x = np.random.default_rng(3).normal(0, 1, (1, len(prompt), cfg.dim)).astype(np.float32)
    with torch.no_grad():
        tables = text.rotary_emb(torch.tensor(x), torch.tensor(positions))
        causal = torch.full((len(prompt),) * 2, -torch.inf).triu(1)[None, None]
        expected = text.layers[layer](
            torch.tensor(x), attention_mask=causal, position_embeddings=tables
        )
    cos, sin = rope_tables(jnp.asarray(positions), cfg.rope, cfg.head_dim)
    assert_close(cos, tables[0][..., own], 1e-5, "cos")
    assert_close(sin, tables[1][..., own], 1e-5, "sin")
    graphdef, state = nnx.split(nnx.merge(pair.graphdef, pair.params).decoder.layers)
    visible = Visible(first=jnp.zeros((), jnp.int32), valid=jnp.ones((1, len(prompt)), bool))

    @jax.jit
    def run(state, x):
        block = nnx.merge(graphdef, jax.tree.map(lambda p: p[layer], state))
        gate = jnp.ones((1, cfg.heads))
        return block(x, cos, sin, visible=visible, cached=None, gate=gate, tap=None)[0]

    assert_close(run(state, x), expected, 1e-5, "decoder layer")


def check_logits(pair: Any, samples: Sequence[Sample], side: Side) -> None:
    """All rows of a padded batch, to 1e-4 of the scale."""
    batch = collate([prompt for prompt, _ in samples], side=side)
    logits, _ = forward(pair.graphdef, pair.params, batch)
    for row, (prompt, images) in enumerate(samples):
        expected = pair.forward(prompt, images).logits[0]
        assert expected.std() > 0.5  # the weights are wide enough to show a mistake
        assert_close(rows(logits[row], prompt, side), expected, 1e-4, f"logits of sample {row}")


def check_greedy(
    pair: Any, samples: Sequence[Sample], answers: Sequence[list[int]], side: Side
) -> None:
    """Greedy tokens of a padded batch, and of one sample alone."""
    assert len({t for row in answers for t in row}) > 8  # not one token for ever
    steps = len(answers[0])
    batch = collate([prompt for prompt, _ in samples], side=side)
    got = generate(pair.graphdef, pair.params, batch, max_new=steps, eos_ids=[])
    assert np.asarray(got.tokens).tolist() == list(answers)
    single = collate([samples[-1][0]], side=side)
    one = generate(pair.graphdef, pair.params, single, max_new=steps, eos_ids=[])
    assert np.asarray(one.tokens)[0].tolist() == answers[-1]


def check_cached(
    pair: Any, samples: Sequence[Sample], answers: Sequence[list[int]], side: Side
) -> None:
    """Logits of every cached step equal a full forward; positions go on after the image's."""
    prompts, steps = [prompt for prompt, _ in samples], len(answers[0])
    full = collate([p.extend(t) for p, t in zip(prompts, answers, strict=True)], side=side)
    every, _ = forward(pair.graphdef, pair.params, full)
    batch = collate(prompts, side=side)
    b, t = batch.tokens.shape
    axes = batch.positions.shape[0]
    cache = prefill(pair.graphdef, pair.params, batch, t + steps)
    for step in range(steps):
        token = np.array([[row[step]] for row in answers], np.int32)
        position = np.broadcast_to(batch.next_position[None, :, None] + step, (axes, b, 1))
        logits, cache = decode(pair.graphdef, pair.params, token, position, cache)
        for row, prompt in enumerate(prompts):
            expected = rows(every[row], prompt.extend(answers[row]), side)[len(prompt) + step]
            assert_close(logits[row], expected, 1e-4, f"step {step} of sample {row}")


def check_masked(pair: Any, samples: Sequence[Sample], heads: Sequence[tuple[int, int]]) -> None:
    """Masked heads equal zeroed inputs of the reference's output projections; ones change
    nothing at all."""
    cfg = pair.config.decoder
    mask = np.ones((cfg.layers, cfg.heads), np.float32)
    ones = mask.copy()
    for head in heads:
        mask[head] = 0
    batch = collate([prompt for prompt, _ in samples])
    masked, _ = forward(pair.graphdef, pair.params, batch, mask)
    plain, _ = forward(pair.graphdef, pair.params, batch)
    same, _ = forward(pair.graphdef, pair.params, batch, ones)
    assert np.array_equal(plain, same)
    with zeroed_heads(pair.projections(), heads, cfg.value_dim):
        for row, (prompt, images) in enumerate(samples):
            expected = pair.forward(prompt, images).logits[0]
            got = rows(masked[row], prompt, "left")
            assert_close(got, expected, 1e-4, f"masked logits of sample {row}")
            assert np.abs(got - rows(plain[row], prompt, "left")).max() > 0.1


def random_heads(pair: Any, count: int, seed: int) -> list[tuple[int, int]]:
    """Different (layer, head) of a pair's decoder."""
    cfg = pair.config.decoder
    picked = np.random.default_rng(seed).choice(cfg.layers * cfg.heads, count, replace=False)
    return [divmod(int(head), cfg.heads) for head in picked]


def check_masked_greedy(
    pair: Any, sample: Sample, heads: Sequence[tuple[int, int]], steps: int
) -> None:
    """Greedy tokens with masked heads, against the reference by full re-forward."""
    cfg, (prompt, images) = pair.config.decoder, sample
    mask = np.ones((cfg.layers, cfg.heads), np.float32)
    for head in heads:
        mask[head] = 0
    with zeroed_heads(pair.projections(), heads, cfg.value_dim):
        expected = pair.greedy(prompt, images, steps)
    assert expected != pair.greedy(prompt, images, steps)  # the heads matter
    batch = collate([prompt])
    got = generate(
        pair.graphdef, pair.params, batch, max_new=steps, eos_ids=[], head_mask=jnp.asarray(mask)
    )
    assert np.asarray(got.tokens)[0].tolist() == expected


def check_attention(
    pair: Any,
    samples: Sequence[Sample],
    boxes: Sequence[tuple[tuple[float, float, float, float], int]],
    side: Side,
    answer: Sequence[int] = (5, 40, 41, 7),
) -> None:
    """Attention rows, region mass and arg-max of rows pred(i) = P + i - 1 and own(i) = P + i of
    a forced answer, for every layer and head.

    Args:
        boxes: of each sample, and the image that it is in.
    """
    long = [prompt.extend(answer) for prompt, _ in samples]
    batch = collate(long, side=side)
    b, t = batch.tokens.shape
    index = np.zeros((b, 2 * len(answer)), np.int32)
    sets = np.zeros((b, 2, t), np.float32)
    for row, (prompt, _) in enumerate(samples):
        start = offset(len(long[row]), t, side)
        own = start + len(prompt) + np.arange(len(answer))
        index[row] = [*(own - 1), *own]
        box, image = boxes[row]
        sets[row, 0, start + prompt.grid.slot] = prompt.grid.cover(box, image=image)
        sets[row, 1, start + prompt.grid.slot] = 1
    assert (sets[:, 0].sum(1) >= 1).all()
    assert (sets[:, 0].sum(1) < sets[:, 1].sum(1)).any()
    tap = Tap(rows=index, sets=sets, weights=True)
    _, tapped = forward(pair.graphdef, pair.params, batch, None, tap)
    for row, (_, images) in enumerate(samples):
        weights = pair.attentions(long[row], images)
        start = offset(len(long[row]), t, side)
        keys = slice(start, start + len(long[row]))
        chosen = weights[:, :, index[row] - start]  # [L, N, Q, T]
        expected = np.einsum("lnqs,rs->lnqr", chosen, sets[row][:, keys])
        assert expected[..., 0].max() > 0.05
        got = jax.tree.map(lambda leaf, row=row: np.asarray(leaf)[:, row], tapped)
        assert_close(got.weights[..., keys], chosen, 1e-4, f"attention of sample {row}")
        assert_close(got.mass, expected, 1e-5, f"mass of sample {row}")
        top = chosen.argmax(-1) + start
        assert np.array_equal(got.top, top)
        hit = np.stack([sets[row][r][top] > 0 for r in range(2)], -1)
        assert np.array_equal(got.hit > 0, hit)


def check_image_padding(pair: Any, sample: Sample, axes: Sequence[int]) -> None:
    """Zeros after the items of some axes of the image arrays change no feature.

    Args:
        axes: of the arrays other than ``index``, batch axis counted.
    """
    prompt, _ = sample
    features = jax.jit(lambda params, arrays: nnx.merge(pair.graphdef, params).features(arrays))
    arrays = {name: array[None] for name, array in prompt.images.items()}
    expected = np.asarray(features(pair.params, arrays))[:, : len(prompt.grid)]

    def padded(name: str) -> np.ndarray:
        more = {1: 7} if name == "index" else {axis: 2 + axis for axis in axes}
        widths = [(0, more.get(axis, 0)) for axis in range(arrays[name].ndim)]
        return np.pad(arrays[name], widths)

    got = np.asarray(features(pair.params, {name: padded(name) for name in arrays}))
    assert_close(got[:, : len(prompt.grid)], expected, 1e-5, "features of padded arrays")
