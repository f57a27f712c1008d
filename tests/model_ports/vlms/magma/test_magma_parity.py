"""Whole-model parity of Magma with transformers' parts, in fp32 on a tiny wide-init config."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from support.magma import SIDE, TINY, MagmaPair, reference_crops
from support.parity import assert_close, textured_image
from support.vlm_checks import (
    check_attention,
    check_cached,
    check_greedy,
    check_image_padding,
    check_logits,
    check_masked,
    make_samples,
)

from model_ports.vlms.magma import config

STEPS = 12
# Two crops side by side, three above each other, one and four in one prompt, none at all.
SPECS = (
    (((150, 100),), "Locate the red square", True),
    (((61, 230),), "What is left of it, output JSON", False),
    (((30, 20), (160, 170)), "Compare 0123", True),
    ((), "How many letters are there in a b c?", True),
)
BOXES = (((20.0, 10.0, 90.0, 70.0), 0), ((5.0, 100.0, 40.0, 180.0), 0), ((9.0, 9.0, 60.0, 60.0), 1))
SIDES = pytest.mark.parametrize("side", ["left", "right"])


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(config.BACKBONES, "convnexttiny", TINY)
        yield MagmaPair.make(tmp_path_factory.mktemp("magma"))


@pytest.fixture(scope="module")
def samples(pair):
    return make_samples(pair, SPECS)


@pytest.fixture(scope="module")
def answers(pair, samples):
    """STEPS greedy tokens of the reference for every sample, by full re-forward."""
    return [pair.greedy(prompt, images, STEPS) for prompt, images in samples]


def test_trunk_and_features(pair, samples):
    """The trunk's map, then rows of crops and their separators."""
    model = nnx.merge(pair.graphdef, pair.params)
    for prompt, images in samples[:3]:
        crops = torch.cat([reference_crops(image, SIDE)[0] for image in images])
        assert_close(prompt.images["crops"], crops, 1e-5, "crops")
        with torch.no_grad():
            maps = pair.reference.trunk(crops).last_hidden_state.permute(0, 2, 3, 1)
        assert_close(model.vision(jnp.asarray(crops.numpy())), maps, 1e-5, "trunk")
        arrays = jax.tree.map(lambda a: jnp.asarray(a)[None], prompt.images)
        features = np.asarray(model.features(arrays)[0])
        expected = torch.cat(pair.image_features(images))
        assert_close(features, expected, 1e-5, "features")
        rows = features[prompt.images["index"] < 0]
        separator = pair.reference.row_seperator.detach().numpy().reshape(1, -1)
        assert len(rows) > 0
        assert np.array_equal(rows, np.broadcast_to(separator, rows.shape))


def test_every_layer_scale_counts(pair):
    """Each block's gamma is the file's: without it the trunk's map differs, in the port as in
    the reference."""
    crops, _ = reference_crops(textured_image(90, 60, 1), SIDE)
    trunk = jax.jit(lambda params: nnx.merge(pair.graphdef, params).vision(crops.numpy()))
    whole = np.asarray(trunk(pair.params))
    for i, depth in enumerate(TINY.depths):
        gamma = np.asarray(pair.params["vision"][f"stage{i}"]["blocks"]["gamma"])
        for block in range(depth):
            theirs = pair.reference.trunk.encoder.stages[i].layers[block].layer_scale_parameter
            kept = theirs.detach().clone()
            assert np.array_equal(gamma[block], kept.numpy())
            params = copy.deepcopy(pair.params)
            params["vision"][f"stage{i}"]["blocks"]["gamma"][block] = 0
            other = np.asarray(trunk(params))
            assert np.abs(other - whole).max() > 1e-2 * np.abs(whole).max(), (i, block)
            with torch.no_grad():
                theirs.zero_()
                maps = pair.reference.trunk(crops).last_hidden_state.permute(0, 2, 3, 1)
                theirs.copy_(kept)
            assert_close(other, maps, 1e-5, f"without gamma {i} {block}")


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
