"""Whole-model parity of GLM-4.6V-Flash with transformers, in fp32 on a tiny wide-init config."""

import dataclasses

import numpy as np
import pytest
from support.glm4v import GlmPair
from support.parity import assert_close
from support.vlm_checks import (
    check_attention,
    check_cached,
    check_greedy,
    check_image_padding,
    check_layer,
    check_logits,
    check_masked,
    check_masked_greedy,
    forward,
    make_samples,
    random_heads,
    rows,
)

from model_ports.port import abstract_model
from model_ports.prompt import collate
from model_ports.vlms.glm4v import PORT

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
    """Zeroed before the projection, whose output is normed; two seeds of five heads."""
    check_masked(pair, samples, random_heads(pair, 5, seed=1))
    check_masked_greedy(pair, samples[1], random_heads(pair, 5, seed=2), STEPS)


@pytest.mark.parametrize("wrong", [{"pairs": "halves"}, {"sections": (8, 0, 0)}])
def test_the_comparison_would_notice_another_rotation(pair, samples, wrong):
    prompt, images = samples[0]
    decoder = pair.config.decoder
    rope = dataclasses.replace(decoder.rope, **wrong)
    config = dataclasses.replace(pair.config, decoder=dataclasses.replace(decoder, rope=rope))
    graphdef, _ = abstract_model(PORT, config)
    logits, _ = forward(graphdef, pair.params, collate([prompt]))
    expected = pair.forward(prompt, images).logits[0].numpy()
    difference = np.abs(rows(logits[0], prompt, "left") - expected).max()
    assert difference > 0.05 * np.abs(expected).max()


def test_text_only(pair):
    text = pair.processor.prepare("Where is the cat")
    assert text.images == {}
    logits, _ = forward(pair.graphdef, pair.params, collate([text]))
    expected = pair.forward(text, []).logits[0]
    assert_close(rows(logits[0], text, "left"), expected, 1e-4, "text-only logits")


@SIDES
def test_attention_and_region_mass_of_answer_rows(pair, samples, side):
    check_attention(pair, samples, BOXES, side)


def test_zero_padding_of_image_arrays_changes_nothing(pair, samples):
    check_image_padding(pair, samples[2], axes=(1, 2))  # images, visual tokens
