"""Whole-model parity of LLaVA-NeXT with transformers, in fp32 on a tiny wide-init config."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from support.llava import LlavaPair
from support.parity import assert_close
from support.vlm_checks import (
    check_attention,
    check_cached,
    check_greedy,
    check_image_padding,
    check_logits,
    check_masked,
    make_samples,
)

STEPS = 12
# Wide and tall with letterbox padding, one crop's shape, two in one prompt, none at all.
SPECS = (
    (((150, 100),), "Locate the red square", True),
    (((61, 230),), "What is left of it, output JSON", False),
    (((30, 20), (120, 170)), "Compare 0123", True),
    ((), "How many letters are there in a b c?", True),
)
BOXES = (((20.0, 10.0, 90.0, 70.0), 0), ((5.0, 100.0, 40.0, 180.0), 0), ((9.0, 9.0, 60.0, 60.0), 1))
SIDES = pytest.mark.parametrize("side", ["left", "right"])


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return LlavaPair.make(tmp_path_factory.mktemp("llava_next"))


@pytest.fixture(scope="module")
def samples(pair):
    return make_samples(pair, SPECS)


@pytest.fixture(scope="module")
def answers(pair, samples):
    """STEPS greedy tokens of the reference for every sample, by full re-forward."""
    return [pair.greedy(prompt, images, STEPS) for prompt, images in samples]


def test_tower_and_features(pair, samples):
    """Second-last block without the class token, then base view, rows and newlines."""
    model = nnx.merge(pair.graphdef, pair.params)
    for prompt, images in samples[:3]:
        pixels = pair.pixels(images)
        with torch.no_grad():
            features = pair.reference.model.get_image_features(**pixels).pooler_output
            flat = torch.tensor(prompt.images["crops"])
            states = pair.reference.model.vision_tower(flat, output_hidden_states=True)
        ours = model.vision(jnp.asarray(prompt.images["crops"]), blocks=3)
        assert_close(ours, states.hidden_states[-2][:, 1:], 1e-5, "tower")
        arrays = jax.tree.map(lambda a: jnp.asarray(a)[None], prompt.images)
        assert_close(model.features(arrays)[0], torch.cat(tuple(features)), 1e-5, "features")
        newline = pair.reference.model.image_newline.detach().numpy()
        rows = np.asarray(model.features(arrays)[0])[prompt.images["index"] < 0]
        assert len(rows) > 0
        assert np.array_equal(rows, np.broadcast_to(newline, rows.shape))


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
    check_attention(pair, samples[:3], BOXES, side)


def test_zero_padding_of_image_arrays_changes_nothing(pair, samples):
    check_image_padding(pair, samples[2], axes=(1,))


def test_bfloat16_stays_bfloat16(pair, samples):
    params = jax.tree.map(lambda p: jnp.asarray(p, jnp.bfloat16), pair.params)
    arrays = jax.tree.map(lambda a: jnp.asarray(a)[None], samples[0][0].images)
    rough = nnx.merge(pair.graphdef, params).features(arrays)
    assert rough.dtype == jnp.bfloat16
    exact = nnx.merge(pair.graphdef, pair.params).features(arrays)
    assert_close(np.asarray(rough, np.float32), exact, 0.1, "features in bfloat16")
