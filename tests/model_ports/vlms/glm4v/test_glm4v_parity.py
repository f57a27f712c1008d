"""Whole-model parity of GLM-4.6V-Flash with transformers, in fp32 on a tiny wide-init config."""

import pytest
from support.glm4v import GlmPair
from support.vlm_checks import (
    check_attention,
    check_cached,
    check_greedy,
    check_image_padding,
    check_layer,
    check_logits,
    check_masked,
    make_samples,
)

STEPS = 12
# Wide, tall and grown images, two in one prompt; before and after the text.
SPECS = (
    (((150, 100),), "Locate the red square", True),
    (((61, 230),), "What is left of it, output JSON", False),
    (((30, 20), (120, 170)), "Compare 0123", False),
)
BOXES = (((20.0, 10.0, 90.0, 70.0), 0), ((5.0, 100.0, 40.0, 180.0), 0), ((9.0, 9.0, 60.0, 60.0), 1))
SIDES = pytest.mark.parametrize("side", ["left", "right"])


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return GlmPair.make(tmp_path_factory.mktemp("glm4v"))


@pytest.fixture(scope="module")
def samples(pair):
    return make_samples(pair, SPECS)


@pytest.fixture(scope="module")
def answers(pair, samples):
    """STEPS greedy tokens of the reference for every sample, by full re-forward."""
    return [pair.greedy(prompt, images, STEPS) for prompt, images in samples]


def test_decoder_layer_with_adjacent_pairs_and_four_norms(pair, samples):
    check_layer(pair, samples[0][0], layer=1, own=slice(None, None, 2))


@SIDES
def test_logits_of_a_mixed_batch(pair, samples, side):
    check_logits(pair, samples, side)


@SIDES
def test_greedy_tokens_equal_reference_and_single(pair, samples, answers, side):
    check_greedy(pair, samples, answers, side)


@SIDES
def test_cached_decoding_equals_full_forward(pair, samples, answers, side):
    check_cached(pair, samples, answers, side)


def test_masked_heads_equal_zeroed_projection_inputs(pair, samples):
    check_masked(pair, samples, [(0, 1), (0, 5), (1, 2), (2, 0), (2, 3)])


@SIDES
def test_attention_and_region_mass_of_answer_rows(pair, samples, side):
    check_attention(pair, samples, BOXES, side)


def test_zero_padding_of_image_arrays_changes_nothing(pair, samples):
    check_image_padding(pair, samples[2], axes=(1, 2))  # images, visual tokens
