"""Whole-model parity of PaliGemma 2 with transformers, in fp32 on a tiny wide-init config."""

import dataclasses

import jax
import numpy as np
import pytest
import torch
from flax import nnx
from support.paligemma import PaliPair
from support.parity import assert_close
from support.vlm_checks import (
    check_attention,
    check_cached,
    check_greedy,
    check_image_padding,
    check_logits,
    check_masked,
    forward,
    make_samples,
)

from model_ports.prompt import collate

STEPS = 12
# One image and two, of other shapes; prompts of different lengths.
SPECS = (
    (((150, 100),), "detect red square", True),
    (((61, 230), (40, 40)), "detect the square left of it ; box", True),
    (((120, 170),), "Locate 0123", True),
)
BOXES = (((20.0, 10.0, 90.0, 70.0), 0), ((5.0, 5.0, 14.0, 30.0), 1), ((9.0, 9.0, 60.0, 60.0), 0))
SIDES = pytest.mark.parametrize("side", ["left", "right"])


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return PaliPair.make(tmp_path_factory.mktemp("paligemma2"))


@pytest.fixture(scope="module")
def samples(pair):
    return make_samples(pair, SPECS)


@pytest.fixture(scope="module")
def answers(pair, samples):
    """STEPS greedy tokens of the reference for every sample, by full re-forward."""
    return [pair.greedy(prompt, images, STEPS) for prompt, images in samples]


@SIDES
def test_logits_of_a_mixed_batch(pair, samples, side):
    check_logits(pair, samples, side)


@SIDES
def test_greedy_tokens_equal_reference_and_single(pair, samples, answers, side):
    check_greedy(pair, samples, answers, side)


@SIDES
def test_cached_decoding_equals_full_forward(pair, samples, answers, side):
    check_cached(pair, samples, answers, side)


@SIDES
def test_forced_answers_are_causal_after_the_prefix(pair, samples, answers, side):
    long = [(p.extend(a), i) for (p, i), a in zip(samples, answers, strict=True)]
    check_logits(pair, long, side)


def test_every_rule_of_the_mask_and_the_logits_matters(pair, samples, answers):
    """On this checkpoint a mistake in any of them shows, so the parity above tests them."""
    prompt = samples[0][0].extend(answers[0])
    batch = collate([prompt], multiple=1)
    logits, _ = forward(pair.graphdef, pair.params, batch)
    start = prompt.prefix

    def change(other) -> tuple[float, float]:
        gap = np.abs(np.asarray(other - logits))[0].max(-1)
        return gap[: start - 1].max(), gap[start:].max()

    causal, _ = forward(pair.graphdef, pair.params, dataclasses.replace(batch, prefix=None))
    assert min(change(causal)) > 0.5
    all_prefix = dataclasses.replace(batch, prefix=batch.valid)
    assert min(change(forward(pair.graphdef, pair.params, all_prefix)[0])) > 0.5
    cfg = pair.config.decoder
    assert cfg.windows == (7, 0, 7, 0)
    for name, value, prefix_changes in (
        ("windows", (), False),
        ("windows", (0, 7, 0, 7), False),
        ("attn_softcap", None, True),
        ("attn_scale", cfg.head_dim**-0.5, True),
    ):
        model = nnx.merge(pair.graphdef, pair.params)
        changed = dataclasses.replace(cfg, **{name: value})
        model.decoder.cfg = changed
        model.decoder.layers.attn.cfg = changed
        before, after = change(forward(*nnx.split(model), batch)[0])
        assert after > 0.1, name
        assert (before > 0.1) == prefix_changes, name


def test_a_forward_without_token_types_is_causal(pair, samples):
    """transformers' silent default equals the port without a prefix."""
    prompt, images = samples[0]
    inputs = pair.inputs(prompt, images)
    del inputs["token_type_ids"]
    with torch.no_grad():
        expected = pair.reference(**inputs, use_cache=False).logits[0]
    batch = dataclasses.replace(collate([prompt], multiple=1), prefix=None)
    assert_close(forward(pair.graphdef, pair.params, batch)[0][0], expected, 1e-4)


def test_image_features_are_not_scaled_and_text_is(pair, samples):
    prompt, images = samples[0]
    model = nnx.merge(pair.graphdef, pair.params)
    inputs = model.embed(collate([prompt], multiple=1))
    with torch.no_grad():
        pixels = pair.inputs(prompt, images)["pixel_values"]
        tower = pair.reference.model
        hidden = tower.vision_tower(pixels).last_hidden_state
        features = tower.multi_modal_projector(hidden)[0]
        words = tower.language_model.embed_tokens(torch.tensor(prompt.tokens[16:]).long())
    assert_close(inputs.x[0, :16], features, 1e-5, "features")
    assert_close(inputs.x[0, 16:], words, 1e-6, "embeddings")
    table = pair.params["decoder"]["embed"]["embedding"]
    plain = table[prompt.tokens[16:]]
    assert np.abs(words.numpy() - plain).max() > 1  # the scale shows


def test_masked_heads_equal_zeroed_projection_inputs(pair, samples):
    check_masked(pair, samples, [(0, 1), (0, 5), (1, 2), (2, 0), (3, 3)])


def test_static_heads_equal_the_traced_mask(pair, samples):
    drop = frozenset({(0, 1), (2, 0), (3, 5)} | {(1, head) for head in range(6)})
    mask = np.ones((4, 6), np.float32)
    for head in drop:
        mask[head] = 0
    batch = collate([prompt.extend([5, 40, 41]) for prompt, _ in samples])

    @jax.jit
    def run(params):
        model = nnx.merge(pair.graphdef, params)
        hidden, _, _ = model.decoder(model.embed(batch), static_heads=drop)
        return model.decoder.logits(hidden)

    got = np.asarray(run(pair.params))
    traced, _ = forward(pair.graphdef, pair.params, batch, mask)
    valid = np.asarray(batch.valid)
    assert_close(got[valid], np.asarray(traced)[valid], 1e-5)


@SIDES
def test_attention_and_region_mass_of_answer_rows(pair, samples, side):
    check_attention(pair, samples, BOXES, side)


def test_zero_padding_of_image_arrays_changes_nothing(pair, samples):
    check_image_padding(pair, samples[1], axes=(1,))
