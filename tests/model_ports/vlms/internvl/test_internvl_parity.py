"""The whole model against transformers (eager, float32) on tiny wide weights."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from support.internvl import Tiny, make_tiny, published
from support.parity import assert_close, textured_image, zeroed_heads

from model_ports.decoder import Inputs
from model_ports.nn.attention import Tap
from model_ports.prompt import Prompt, collate, offset
from vrh_jax.engine.generate import generate

STEPS = 12


# InternVL3, InternVL3.5, and InternVL2.5, whose oracle is transformers' InternVL on a Llama.
@pytest.fixture(scope="module", params=["qwen2", "qwen3", "internlm2"])
def tiny(request, tmp_path_factory) -> Tiny:
    folder = tmp_path_factory.mktemp(f"internvl_{request.param}")
    if request.param == "internlm2":
        return published(make_tiny(folder / "llama", seed=3, backbone="llama"), folder / "remote")
    return make_tiny(folder, seed=3, backbone=request.param)


# What does not depend on the language model is tested with one.
ONE = pytest.mark.parametrize("tiny", ["qwen2"], indirect=True)
# Padding is the decoder's matter, so each side is tried with some of them.
SIDES = pytest.mark.parametrize(
    ("tiny", "side"),
    [("qwen2", "left"), ("qwen2", "right"), ("qwen3", "left"), ("internlm2", "right")],
    indirect=["tiny"],
)


@pytest.fixture(scope="module")
def prompts(tiny) -> list[Prompt]:
    """Four questions: 7 tiles, 1 tile with the text first, two images, and none at all."""
    prepare = tiny.processor.prepare
    return [
        prepare("Where is the red square?", [textured_image(250, 170, 1)]),
        prepare("Locate <ref>the blue disc</ref>", [textured_image(60, 64, 2)], image_first=False),
        prepare("Compare them", [textured_image(90, 260, 3), textured_image(100, 90, 4)]),
        prepare("How many letters are there in a b c?"),
    ]


def reference_inputs(prompt: Prompt) -> dict[str, torch.Tensor]:
    inputs = {"input_ids": torch.tensor(prompt.tokens[None].astype(np.int64))}
    if prompt.images:
        inputs["pixel_values"] = torch.tensor(prompt.images["tiles"])
    return inputs


def reference_logits(tiny, prompt) -> np.ndarray:
    with torch.no_grad():
        return tiny.reference(**reference_inputs(prompt)).logits[0].numpy()


def reference_answer(tiny, prompt) -> list[int]:
    """STEPS greedy tokens of ``generate``, with its cache."""
    inputs = reference_inputs(prompt)
    with torch.no_grad():
        out = tiny.reference.generate(
            **inputs,
            attention_mask=torch.ones_like(inputs["input_ids"]),
            max_new_tokens=STEPS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return out[0, len(prompt) :].tolist()


def all_heads(tiny) -> np.ndarray:
    """The mask that removes none; as an argument it compiles once with those that do."""
    return np.ones((tiny.config.decoder.layers, tiny.config.decoder.heads), np.float32)


@jax.jit
def _forward(model_state, batch, head_mask=None, tap=None, cache=None):
    model = nnx.merge(*model_state)
    hidden, cache, tapped = model.decoder(
        model.embed(batch), head_mask=head_mask, tap=tap, cache=cache
    )
    return model.decoder.logits(hidden), cache, tapped


def port_logits(tiny, prompts, side="left", head_mask=None) -> list[np.ndarray]:
    """Logits of each prompt without its padding."""
    batch = collate(prompts, side=side, multiple=16)
    mask = all_heads(tiny) if head_mask is None else head_mask
    out = np.asarray(_forward((tiny.graphdef, tiny.params), batch, mask)[0])
    starts = [offset(len(p), out.shape[1], side) for p in prompts]
    return [row[s : s + len(p)] for row, s, p in zip(out, starts, prompts, strict=True)]


@ONE
def test_vision_tower_and_projector(tiny, prompts):
    pixels = prompts[0].images["tiles"]
    assert pixels.shape == (7, 3, 84, 84)

    @jax.jit
    def run(params, pixels):
        model = nnx.merge(tiny.graphdef, params)
        return model.vision(pixels), model.features({"tiles": pixels[None]})

    with torch.no_grad():
        tower = tiny.reference.model.vision_tower(torch.tensor(pixels)).last_hidden_state
        features = tiny.reference.model.get_image_features(torch.tensor(pixels)).pooler_output
    patches, ours = run(tiny.params, pixels)
    assert_close(patches, tower[:, 1:], 1e-5, "vision tower")
    assert_close(ours[0], features.reshape(-1, features.shape[-1]), 1e-5, "projected features")


@SIDES
def test_logits_of_a_mixed_batch(tiny, prompts, side):
    for prompt, ours in zip(prompts, port_logits(tiny, prompts, side), strict=True):
        assert_close(ours, reference_logits(tiny, prompt), 1e-4, f"logits, {side} padding")


@ONE
def test_batch_equals_singles(tiny, prompts):
    together = port_logits(tiny, prompts)
    for i in (1, 3):
        alone = port_logits(tiny, [prompts[i]])[0]
        assert_close(together[i], alone, 1e-5, "batch against single")


@ONE
def test_padded_tiles_leave_features_unchanged(tiny, prompts):
    tiles = jnp.asarray(prompts[0].images["tiles"])[None]
    model = nnx.merge(tiny.graphdef, tiny.params)
    plain = model.features({"tiles": tiles})
    padded = model.features({"tiles": jnp.pad(tiles, ((0, 0), (0, 3), *((0, 0),) * 3))})
    assert_close(padded[:, : plain.shape[1]], plain, 1e-6, "features")


def random_heads(tiny, seed: int) -> tuple[list[tuple[int, int]], np.ndarray]:
    """Five heads and the mask without them."""
    layers, heads = tiny.config.decoder.layers, tiny.config.decoder.heads
    flat = np.random.default_rng(seed).choice(layers * heads, 5, replace=False)
    chosen = [(int(i) // heads, int(i) % heads) for i in flat]
    mask = all_heads(tiny)
    mask[tuple(np.array(chosen).T)] = 0
    return chosen, mask


@pytest.mark.parametrize("masked", [False, True])
@SIDES
def test_greedy_tokens(tiny, prompts, side, masked):
    chosen, mask = random_heads(tiny, 2) if masked else ([], all_heads(tiny))
    out = generate(
        tiny.graphdef, tiny.params, collate(prompts, side=side), max_new=STEPS,
        eos_ids=(10**6,), head_mask=mask,
    ).tokens  # fmt: skip
    with zeroed_heads(tiny.projections, chosen, tiny.config.decoder.head_dim):
        expected = [reference_answer(tiny, prompt) for prompt in prompts]
    assert np.asarray(out).tolist() == expected
    # Constant answers would hide a wrong cache.
    assert sum(len(set(answer)) > 2 for answer in expected) > 1


def test_cached_decoding_equals_full_forward(tiny, prompts):
    model = nnx.merge(tiny.graphdef, tiny.params)
    batch = collate(prompts, side="left")
    rows, length = batch.tokens.shape
    rng = np.random.default_rng(0)
    answer = rng.integers(0, 200, (rows, STEPS)).astype(np.int32)
    cache = model.decoder.empty_cache(rows, length + STEPS)
    _, cache, _ = _forward((tiny.graphdef, tiny.params), batch, cache=cache)

    @jax.jit
    def step(cache, token, position):
        x = model.decoder.embed(token[:, None])
        valid = jnp.ones((rows, 1), bool)
        hidden, cache, _ = model.decoder(Inputs(x, position[None, :, None], valid), cache=cache)
        return model.decoder.logits(hidden)[:, 0], cache

    start = batch.next_position
    cached = []
    for i in range(STEPS):
        logits, cache = step(cache, answer[:, i], start + i)
        cached.append(logits)
    grown = [p.extend(a) for p, a in zip(prompts, answer, strict=True)]
    full = port_logits(tiny, grown, "right")
    for row in range(rows):
        ours = np.stack([step[row] for step in cached])
        assert_close(ours, full[row][-STEPS:], 1e-5, "cached decode")
        assert_close(ours, reference_logits(tiny, grown[row])[-STEPS:], 1e-4, "reference")


@pytest.mark.parametrize("seed", [0, 1])
def test_masked_heads(tiny, prompts, seed):
    chosen, mask = random_heads(tiny, seed)
    masked = port_logits(tiny, prompts, head_mask=mask)
    plain = port_logits(tiny, prompts)
    with zeroed_heads(tiny.projections, chosen, tiny.config.decoder.head_dim):
        for prompt, ours, before in zip(prompts, masked, plain, strict=True):
            assert_close(ours, reference_logits(tiny, prompt), 1e-4, f"masked {chosen}")
            assert np.abs(ours - before).max() > 1e-2 * np.abs(before).max()


@SIDES
def test_region_mass_equals_eager_attention(tiny, prompts, side):
    rng = np.random.default_rng(7)
    answers = rng.integers(0, 200, (3, 6))
    boxes = [(100, 20, 180, 90), (5, 30, 40, 60), (10, 100, 80, 220)]
    grown = [p.extend(a) for p, a in zip(prompts, answers, strict=False)]
    batch = collate(grown, side=side)
    slots = batch.tokens.shape[1]
    sets = np.zeros((3, 2, slots), np.float32)
    rows = np.zeros((3, 12), np.int32)
    for i, (prompt, box) in enumerate(zip(prompts, boxes, strict=False)):
        start = offset(len(grown[i]), slots, side)
        sets[i, 0, start + prompt.grid.slot] = prompt.grid.cover(box)
        sets[i, 1, start + prompt.grid.slot] = prompt.grid.cover(box, rule="coverage", views=(0,))
        first = start + len(prompt)
        rows[i] = [*range(first - 1, first + 5), *range(first, first + 6)]  # pred, own
    tap = Tap(rows=jnp.asarray(rows), sets=jnp.asarray(sets))
    _, _, tapped = _forward((tiny.graphdef, tiny.params), batch, tap=tap)
    assert (sets.sum(axis=2) > 0).all()
    # Rounding of the reference itself reaches 1e-5 in float32 (sharp softmax, three layers).
    precise = copy.deepcopy(tiny.reference).double()
    for i, prompt in enumerate(grown):
        start = offset(len(prompt), slots, side)
        with torch.no_grad():
            inputs = reference_inputs(prompt)
            inputs["pixel_values"] = inputs["pixel_values"].double()
            attentions = precise(**inputs, output_attentions=True).attentions
        weights = torch.stack([a[0] for a in attentions]).numpy().astype(np.float64)  # [L,N,T,T]
        chosen = weights[:, :, rows[i] - start]
        expected = np.einsum("lnqs,rs->lnqr", chosen, sets[i, :, start : start + len(prompt)])
        # Masses are probabilities, so the error is absolute.
        worst = np.abs(np.asarray(tapped.mass)[:, i] - expected).max()
        assert worst <= 1e-5
        assert expected.max() > 0.1


@pytest.mark.parametrize("tiny", ["internlm2"], indirect=True)
def test_contiguous_split_of_wqkv_is_garbage(tiny, prompts, tmp_path):
    """It passes every shape check, so only parity can tell."""
    wrong = published(make_tiny(tmp_path / "hf", seed=3, backbone="llama"), tmp_path / "remote",
                      contiguous=True)  # fmt: skip
    ours, expected = port_logits(wrong, prompts[:1])[0], reference_logits(tiny, prompts[0])
    assert ours.shape == expected.shape
    assert np.abs(ours - expected).max() > 0.2 * np.abs(expected).max()


@pytest.mark.parametrize("backbone", ["qwen2", "llama"])
def test_dynamic_ntk_beyond_the_trained_length(tmp_path, backbone):
    """Inert up to the trained length, then as in transformers."""
    long = make_tiny(tmp_path / "long", seed=11, backbone=backbone)
    short = make_tiny(tmp_path / "short", seed=11, backbone=backbone, trained_length=64)
    prompt = short.processor.prepare("Where is it?", [textured_image(250, 170, 1)])
    assert len(prompt) > 64
    ours = port_logits(short, [prompt])[0]
    assert_close(ours, reference_logits(short, prompt), 1e-4, "logits")
    plain = port_logits(long, [prompt])[0]
    assert_close(plain, reference_logits(long, prompt), 1e-4, "logits")
    assert np.abs(ours - plain).max() > 1e-2 * np.abs(plain).max()


@pytest.mark.parametrize("tiny", ["qwen2", "qwen3"], indirect=True)
def test_bfloat16_stays_bfloat16(tiny, prompts):
    params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), tiny.params)
    batch = collate(prompts[:1])

    @jax.jit
    def run(params):
        model = nnx.merge(tiny.graphdef, params)
        hidden, _, _ = model.decoder(model.embed(batch))
        return model.features(batch.images), hidden

    rough, hidden = run(params)
    assert (rough.dtype, hidden.dtype) == (jnp.bfloat16, jnp.bfloat16)
    exact, _ = run(tiny.params)
    assert_close(np.asarray(rough, np.float32), np.asarray(exact), 0.1, "features in bfloat16")
