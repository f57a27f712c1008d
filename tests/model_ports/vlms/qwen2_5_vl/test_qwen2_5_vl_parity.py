"""Whole-model parity of Qwen2.5-VL with transformers, in fp32 on a tiny wide-init config."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from support.parity import assert_close, textured_image, zeroed_heads
from support.qwen25 import Pair

from model_ports.decoder import Inputs
from model_ports.nn.attention import Tap, Visible
from model_ports.nn.rope import rope_tables
from model_ports.prompt import collate, offset
from vrh_jax.engine.generate import generate

STEPS = 12
# (width, height) per image of each sample: several windows, wide, tall, upscaled, two images.
SAMPLES = (
    (((150, 100),), "Locate the red square", True),
    (((61, 230),), "What is left of it, output JSON", False),
    (((300, 40),), "a", True),
    (((30, 20), (120, 170)), "Compare 0123", False),
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return Pair.make(tmp_path_factory.mktemp("qwen25"))


@pytest.fixture(scope="module")
def samples(pair):
    """(prompt, images) of every sample."""
    out = []
    for number, (sizes, text, image_first) in enumerate(SAMPLES):
        images = [textured_image(*size, seed=10 * number + i) for i, size in enumerate(sizes)]
        out.append((pair.processor.prepare(text, images, image_first=image_first), images))
    return out


@pytest.fixture(scope="module")
def answers(pair, samples):
    """STEPS greedy tokens of the reference for every sample, by full re-forward."""
    return [pair.greedy(prompt, images, STEPS) for prompt, images in samples]


@partial(jax.jit, static_argnames="graphdef")
def forward(graphdef, params, batch, head_mask=None, tap=None):
    model = nnx.merge(graphdef, params)
    hidden, _, tapped = model.decoder(model.embed(batch), head_mask=head_mask, tap=tap)
    return model.decoder.logits(hidden), tapped


@partial(jax.jit, static_argnames="graphdef")
def decode(graphdef, params, token, position, cache):
    decoder = nnx.merge(graphdef, params).decoder
    valid = np.ones(token.shape, bool)
    hidden, cache, _ = decoder(Inputs(decoder.embed(token), position, valid), cache=cache)
    return decoder.logits(hidden)[:, 0], cache


def rows(batched, prompt, side):
    """The row's real tokens."""
    start = offset(len(prompt), batched.shape[0], side)
    return np.asarray(batched)[start : start + len(prompt)]


@pytest.mark.parametrize("side", ["left", "right"])
def test_logits_of_a_mixed_batch(pair, samples, side):
    batch = collate([prompt for prompt, _ in samples], side=side)
    logits, _ = forward(pair.graphdef, pair.params, batch)
    for row, (prompt, images) in enumerate(samples):
        expected = pair.forward(prompt, images).logits[0]
        assert expected.std() > 0.5  # the weights are wide enough to show a mistake
        assert_close(rows(logits[row], prompt, side), expected, 1e-4, f"logits of sample {row}")


def test_decoder_layer_with_section_rope(pair, samples):
    """One layer and its rotary tables on random activations at the positions of a prompt."""
    prompt = samples[0][0]
    text = pair.reference.model.language_model
    positions = prompt.positions[:, None]
    x = np.random.default_rng(3).normal(0, 1, (1, len(prompt), 96)).astype(np.float32)
    cos, sin = rope_tables(jnp.asarray(positions), pair.config.decoder.rope, 16)
    with torch.no_grad():
        tables = text.rotary_emb(torch.tensor(x), torch.tensor(positions))
        causal = torch.full((len(prompt),) * 2, -torch.inf).triu(1)[None, None]
        expected = text.layers[1](
            torch.tensor(x), attention_mask=causal, position_embeddings=tables
        )
    assert_close(cos, tables[0][..., :8], 1e-5, "cos")
    assert_close(sin, tables[1][..., :8], 1e-5, "sin")
    graphdef, state = nnx.split(nnx.merge(pair.graphdef, pair.params).decoder.layers)
    visible = Visible(first=jnp.zeros((), jnp.int32), valid=jnp.ones((1, len(prompt)), bool))

    @jax.jit
    def layer(state, x):
        block = nnx.merge(graphdef, jax.tree.map(lambda p: p[1], state))
        gate = jnp.ones((1, 6))
        return block(x, cos, sin, visible=visible, cached=None, gate=gate, tap=None)[0]

    got = layer(state, x)
    assert_close(got, expected, 1e-5, "decoder layer")


def test_positions_and_features_matter_to_the_reference(pair, samples):
    """The comparison above would notice 1-D positions, so it is not blind."""
    prompt, images = samples[0]
    inputs = pair.inputs(prompt, images)
    right = pair.forward(prompt, images).logits
    with torch.no_grad():
        flat = pair.reference(
            **inputs, position_ids=torch.arange(len(prompt)).expand(3, 1, -1), use_cache=False
        ).logits
    assert (right - flat).abs().max() > 0.05 * right.abs().max()


def test_text_only_and_mixed_with_images(pair, samples):
    text = pair.processor.prepare("Where is the cat")
    assert text.images == {}
    assert len(text.grid) == 0
    alone, _ = forward(pair.graphdef, pair.params, collate([text]))
    expected = pair.forward(text, []).logits[0]
    assert_close(rows(alone[0], text, "left"), expected, 1e-4, "text-only logits")
    mixed, _ = forward(pair.graphdef, pair.params, collate([text, samples[0][0]]))
    assert_close(rows(mixed[0], text, "left"), expected, 1e-4, "text beside an image")


@pytest.mark.parametrize("side", ["left", "right"])
def test_greedy_tokens_equal_reference_and_singles(pair, samples, answers, side):
    assert len({t for row in answers for t in row}) > 8  # not one token for ever
    batch = collate([prompt for prompt, _ in samples], side=side)
    got = generate(pair.graphdef, pair.params, batch, max_new=STEPS, eos_ids=[])
    assert np.asarray(got.tokens).tolist() == answers
    if side == "left":
        return
    for row in (1, 3):  # a tall image; two images
        single = collate([samples[row][0]], side=side)
        one = generate(pair.graphdef, pair.params, single, max_new=STEPS, eos_ids=[])
        assert np.asarray(one.tokens)[0].tolist() == answers[row]


def test_cached_decoding_equals_full_forward(pair, samples, answers):
    """Logits of every decoding step, not only their arg-max."""
    model = nnx.merge(pair.graphdef, pair.params)
    for side in ("left", "right"):
        prompts = [prompt for prompt, _ in samples]
        full = collate([p.extend(t) for p, t in zip(prompts, answers, strict=True)], side=side)
        every, _ = forward(pair.graphdef, pair.params, full)
        batch = collate(prompts, side=side)
        b, t = batch.tokens.shape
        _, cache, _ = model.decoder(
            model.embed(batch),
            cache=model.decoder.empty_cache(b, t + STEPS),
        )
        for step in range(STEPS):
            token = np.array([[row[step]] for row in answers], np.int32)
            position = np.broadcast_to(batch.next_position[None, :, None] + step, (3, b, 1))
            logits, cache = decode(pair.graphdef, pair.params, token, position, cache)
            for row, prompt in enumerate(prompts):
                long = prompt.extend(answers[row])
                expected = rows(every[row], long, side)[len(prompt) + step]
                assert_close(logits[row], expected, 1e-4, f"step {step} of sample {row}")


def test_batch_equals_singles(pair, samples):
    prompts = [prompt for prompt, _ in samples]
    logits, _ = forward(pair.graphdef, pair.params, collate(prompts))
    for row, prompt in enumerate(prompts):
        one, _ = forward(pair.graphdef, pair.params, collate([prompt]))
        expected = rows(one[0], prompt, "left")
        assert_close(rows(logits[row], prompt, "left"), expected, 1e-5, f"sample {row}")


def test_zero_padding_of_any_image_array_changes_nothing(pair, samples):
    prompt, _ = samples[3]
    features = jax.jit(lambda params, arrays: nnx.merge(pair.graphdef, params).features(arrays))
    arrays = {name: array[None] for name, array in prompt.images.items()}
    expected = np.asarray(features(pair.params, arrays))[:, : len(prompt.grid)]

    def padded(name, axis, more):
        widths = [(0, 0)] * arrays[name].ndim
        widths[axis] = (0, more)
        return np.pad(arrays[name], widths)

    for axis in (1, 2):  # images, windows
        wider = {n: padded(n, axis, 3) for n in ("patches", "valid", "hw")}
        wider["index"] = padded("index", 1, 7)
        got = np.asarray(features(pair.params, wider))[:, : len(prompt.grid)]
        assert_close(got, expected, 1e-6, f"features with axis {axis} padded")


def test_masked_heads_equal_zeroed_projection_inputs(pair, samples):
    heads = [(0, 1), (0, 5), (1, 2), (2, 0), (2, 3)]
    mask = np.ones((3, 6), np.float32)
    for head in heads:
        mask[head] = 0
    batch = collate([prompt for prompt, _ in samples])
    masked, _ = forward(pair.graphdef, pair.params, batch, mask)
    plain, _ = forward(pair.graphdef, pair.params, batch)
    ones, _ = forward(pair.graphdef, pair.params, batch, np.ones((3, 6), np.float32))
    assert np.array_equal(plain, ones)
    with zeroed_heads(pair.projections(), heads, 16):
        for row, (prompt, images) in enumerate(samples):
            expected = pair.forward(prompt, images).logits[0]
            got = rows(masked[row], prompt, "left")
            assert_close(got, expected, 1e-4, f"masked logits of sample {row}")
            assert np.abs(got - rows(plain[row], prompt, "left")).max() > 0.1


@pytest.mark.parametrize("side", ["left", "right"])
def test_region_mass_equals_reference_attention(pair, samples, side):
    """Rows pred(i) = P + i - 1 and own(i) = P + i of a forced answer, per sample and head."""
    answer = [5, 40, 41, 7]
    long = [prompt.extend(answer) for prompt, _ in samples]
    batch = collate(long, side=side)
    b, t = batch.tokens.shape
    boxes = [(20.0, 10.0, 90.0, 70.0), (5.0, 100.0, 40.0, 180.0), (0.0, 0.0, 299.0, 39.0), None]
    index = np.zeros((b, 2 * len(answer)), np.int32)
    sets = np.zeros((b, 2, t), np.float32)
    for row, (prompt, _) in enumerate(samples):
        start = offset(len(long[row]), t, side)
        for i in range(len(answer)):
            index[row, i] = start + len(prompt) + i - 1
            index[row, len(answer) + i] = start + len(prompt) + i
        grid = prompt.grid
        box, image = (boxes[row], 0) if boxes[row] else ((10.0, 10.0, 60.0, 60.0), 1)
        sets[row, 0, start + grid.slot] = grid.cover(box, image=image)
        sets[row, 1, start + grid.slot] = 1
    assert (sets[:, 0].sum(1) >= 1).all()
    assert (sets[:, 0].sum(1) < sets[:, 1].sum(1))[[0, 1, 3]].all()
    _, tapped = forward(pair.graphdef, pair.params, batch, None, Tap(rows=index, sets=sets))
    for row, (_, images) in enumerate(samples):
        weights = pair.attentions(long[row], images)
        start = offset(len(long[row]), t, side)
        keys = slice(start, start + len(long[row]))
        chosen = weights[:, :, index[row] - start]  # [L, N, Q, T]
        expected = np.einsum("lnqs,rs->lnqr", chosen, sets[row][:, keys])
        assert expected[..., 0].max() > 0.05
        assert_close(np.asarray(tapped.mass)[:, row], expected, 1e-5, f"mass of sample {row}")
        top = chosen.argmax(-1) + start
        assert np.array_equal(np.asarray(tapped.top)[:, row], top)
        hit = np.stack([sets[row][r][top] > 0 for r in range(2)], -1)
        assert np.array_equal(np.asarray(tapped.hit)[:, row] > 0, hit)


def test_other_seed_tied_head_and_more_windows(tmp_path):
    tied = Pair.make(tmp_path, seed=7, text={"tie_word_embeddings": True})
    assert tied.config.decoder.tied
    image = textured_image(211, 283, seed=3)
    prompt = tied.processor.prepare("Which one", [image])
    logits, _ = forward(tied.graphdef, tied.params, collate([prompt], side="right"))
    expected = tied.forward(prompt, [image]).logits[0]
    assert_close(rows(logits[0], prompt, "right"), expected, 1e-4, "logits of a tied model")


def test_answers_end_at_any_end_token(pair, samples, answers):
    prompt, tokens = samples[0][0], answers[0]
    end = tokens[4]
    got = generate(pair.graphdef, pair.params, collate([prompt]), max_new=STEPS, eos_ids=[399, end])
    length = tokens.index(end)
    assert int(got.lengths[0]) == length
    assert np.asarray(got.tokens)[0].tolist() == tokens[:length] + [-1] * (STEPS - length)
