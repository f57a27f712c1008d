"""Whole-model parity of Qwen3-VL with transformers, in fp32 on a tiny wide-init config."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from support.parity import assert_close
from support.qwen3 import Qwen3Pair
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
from model_ports.vlms.qwen3_vl import PORT

STEPS = 12
# (width, height) per image of each sample: wide, tall, upscaled, two images.
SPECS = (
    (((150, 100),), "Locate the red square", True),
    (((61, 230),), "What is left of it, output JSON", False),
    (((30, 20), (120, 170)), "Compare 0123", False),
)
BOXES = [((20, 10, 90, 70), 0), ((5, 100, 40, 180), 0), ((10, 10, 60, 60), 1)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return Qwen3Pair.make(tmp_path_factory.mktemp("qwen3"))


@pytest.fixture(scope="module")
def samples(pair):
    return make_samples(pair, SPECS)


@pytest.fixture(scope="module")
def answers(pair, samples):
    """STEPS greedy tokens of the reference for every sample, by full re-forward."""
    return [pair.greedy(prompt, images, STEPS) for prompt, images in samples]


@pytest.mark.parametrize("side", ["left", "right"])
def test_logits_of_a_mixed_batch(pair, samples, side):
    check_logits(pair, samples, side)


@pytest.mark.parametrize("side", ["left", "right"])
def test_greedy_tokens(pair, samples, answers, side):
    check_greedy(pair, samples, answers, side)


def test_cached_decoding_equals_full_forward(pair, samples, answers):
    check_cached(pair, samples, answers, "left")


@pytest.mark.parametrize("seed", [0, 1])
def test_five_masked_heads(pair, samples, seed):
    heads = random_heads(pair, 5, seed)
    check_masked(pair, samples, heads)
    check_masked_greedy(pair, samples[seed], heads, STEPS)


def test_decoder_layer_with_interleaved_axes_and_normed_heads(pair, samples):
    check_layer(pair, samples[2][0], layer=1, own=slice(0, 12))


@pytest.mark.parametrize("side", ["left", "right"])
def test_region_mass_and_attention(pair, samples, side):
    check_attention(pair, samples, BOXES, side)


def test_zero_padding_of_any_image_array_changes_nothing(pair, samples):
    check_image_padding(pair, samples[2], (1, 2))


def test_text_only_and_mixed_with_images(pair, samples):
    text = pair.processor.prepare("Where is the cat")
    assert text.images == {}
    expected = pair.forward(text, []).logits[0]
    for prompts in ([text], [text, samples[0][0]]):
        logits, _ = forward(pair.graphdef, pair.params, collate(prompts))
        assert_close(rows(logits[0], text, "left"), expected, 1e-4, "text-only logits")


def test_deepstack_matters_and_is_the_references(pair, samples):
    """Without DeepStack both models change, and stay equal."""
    prompt, images = samples[0]
    batch = collate([prompt])
    with_it, _ = forward(pair.graphdef, pair.params, batch)
    params = copy.deepcopy(pair.params)
    for leaf in params["vision"]["deepstack"]["mlp"]["fc2"].values():
        leaf[...] = 0
    without, _ = forward(pair.graphdef, params, batch)
    got = rows(without[0], prompt, "left")
    assert np.abs(got - rows(with_it[0], prompt, "left")).max() > 0.1 * np.abs(got).max()
    mergers = pair.reference.model.visual.deepstack_merger_list
    state = copy.deepcopy(mergers.state_dict())
    with torch.no_grad():
        for merger in mergers:
            merger.linear_fc2.weight.zero_()
            merger.linear_fc2.bias.zero_()
    try:
        expected = pair.forward(prompt, images).logits[0]
    finally:
        mergers.load_state_dict(state)
    assert_close(got, expected, 1e-4, "logits without DeepStack")


@pytest.mark.parametrize("change", ["sections in a row", "as many of each axis", "theta"])
def test_the_comparison_would_notice_another_rotation(pair, samples, change):
    decoder = pair.config.decoder
    rope = {
        "sections in a row": dataclasses.replace(decoder.rope, interleaved=False),
        "as many of each axis": dataclasses.replace(decoder.rope, sections=(4, 4, 4)),
        "theta": dataclasses.replace(decoder.rope, theta=100.0),
    }[change]
    decoder = dataclasses.replace(decoder, rope=rope)
    graphdef, _ = abstract_model(PORT, dataclasses.replace(pair.config, decoder=decoder))
    batch = collate([samples[0][0]])
    right, _ = forward(pair.graphdef, pair.params, batch)
    wrong, _ = forward(graphdef, pair.params, batch)
    assert np.abs(right - wrong).max() > 0.002 * np.abs(right).max()  # 20 times the tolerance


def test_other_seed_and_tied_head(tmp_path):
    tied = Qwen3Pair.make(tmp_path, seed=7, text={"tie_word_embeddings": True})
    assert tied.config.decoder.tied
    samples = make_samples(tied, [(((211, 283),), "Which one", True)])
    check_logits(tied, samples, "right")
