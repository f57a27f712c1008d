"""Whole-model parity of Phi-4-Reasoning-Vision with transformers' towers, in fp32 on a tiny
wide-init config."""

import dataclasses

import jax
import numpy as np
import pytest
import torch
from flax import nnx
from support.parity import assert_close
from support.phi4_rv import PhiPair
from support.vlm_checks import (
    check_attention,
    check_cached,
    check_greedy,
    check_image_padding,
    check_logits,
    check_masked,
    check_masked_greedy,
    forward,
    make_samples,
    random_heads,
)

from model_ports.prompt import collate

STEPS = 12
# Within the budget, grown and shrunk; two in one prompt; before and after the text.
SPECS = (
    (((61, 40),), "Locate the red square", True),
    (((9, 30), (150, 100)), "What is left of it, output JSON", False),
    (((20, 90),), "Compare 0123", True),
)
BOXES = (((20.0, 10.0, 50.0, 30.0), 0), ((30.0, 5.0, 90.0, 60.0), 1), ((3.0, 9.0, 15.0, 60.0), 0))
SIDES = pytest.mark.parametrize("side", ["left", "right"])


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return PhiPair.make(tmp_path_factory.mktemp("phi4_rv"))


@pytest.fixture(scope="module")
def samples(pair):
    return make_samples(pair, SPECS)


@pytest.fixture(scope="module")
def answers(pair, samples):
    """STEPS greedy tokens of the reference for every sample, by full re-forward."""
    return [pair.greedy(prompt, images, STEPS) for prompt, images in samples]


def test_features_of_the_second_last_block(pair, samples):
    """Two images of one prompt, one below and one above the position table of 5 x 5."""
    prompt, images = samples[1]
    arrays = {name: array[None] for name, array in prompt.images.items()}
    features = jax.jit(lambda p, a: nnx.merge(pair.graphdef, p).features(a))
    pixels = pair.pixels(images)
    shapes = pixels["spatial_shapes"].T.tolist()
    assert [prompt.images[name].tolist() for name in ("rows", "columns")] == shapes
    assert min(map(min, shapes)) < 5 < max(map(max, shapes))
    with torch.no_grad():
        expected = torch.cat(pair.reference.images(pixels))
    got = features(pair.params, arrays)[0, : len(expected)]
    assert_close(got, expected, 1e-5, "features")
    turned = arrays | {"rows": arrays["columns"], "columns": arrays["rows"]}
    other = features(pair.params, turned)[0, : len(expected)]
    assert np.abs(other - got).max() > 0.1  # the grid matters


@SIDES
def test_logits_of_a_mixed_batch(pair, samples, side):
    check_logits(pair, samples, side)


def test_prompts_with_and_without_images_in_one_batch(pair, samples):
    text = pair.processor.prepare("What is it?", [])
    check_logits(pair, [*samples[:1], (text, [])], "left")


@SIDES
def test_greedy_tokens_equal_reference_and_single(pair, samples, answers, side):
    check_greedy(pair, samples, answers, side)


@SIDES
def test_cached_decoding_equals_full_forward(pair, samples, answers, side):
    check_cached(pair, samples, answers, side)


def test_images_are_read_causally(pair, samples):
    """As in the released code: no token sees a later one, within an image neither."""
    prompt, _ = samples[0]
    batch = collate([prompt], multiple=1)
    logits, _ = forward(pair.graphdef, pair.params, batch)
    last = int(prompt.grid.slot[-1])
    index = np.asarray(batch.visual_index).copy()
    index[0, last] = index[0, last - 1]
    changed = dataclasses.replace(batch, visual_index=index)
    other, _ = forward(pair.graphdef, pair.params, changed)
    gap = np.abs(np.asarray(other - logits))[0].max(-1)
    assert gap[:last].max() == 0
    assert gap[last] > 0.1


def test_masked_heads_equal_zeroed_projection_inputs(pair, samples):
    check_masked(pair, samples, random_heads(pair, 5, seed=1))


def test_masked_greedy_tokens_equal_reference(pair, samples):
    check_masked_greedy(pair, samples[0], random_heads(pair, 6, seed=2), STEPS // 2)


@SIDES
def test_attention_and_region_mass_of_answer_rows(pair, samples, side):
    check_attention(pair, samples, BOXES, side)


def test_zero_padding_of_image_arrays_changes_nothing(pair, samples):
    check_image_padding(pair, samples[1], axes=(1, 2))  # images, patches
