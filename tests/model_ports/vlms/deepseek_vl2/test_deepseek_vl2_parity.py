"""Whole-model parity of DeepSeek-VL2 with transformers' towers, in fp32 on a tiny wide-init
config."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from support.deepseek import CANVASES, SIDE, DeepseekPair, views
from support.parity import assert_close
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

from model_ports.images.letterbox import VIEW_SEPARATOR
from model_ports.prompt import collate

STEPS = 12
# One crop's shape, wide, tall; two images that are cut; three that are not.
SPECS = (
    (((80, 60),), "Locate the red square", True),
    (((61, 130), (50, 50)), "What is left of it", False),
    (((60, 20), (90, 30), (31, 44)), "Compare 0123", True),
)
BOXES = (((20.0, 10.0, 50.0, 40.0), 0), ((5.0, 50.0, 40.0, 100.0), 0), ((9.0, 5.0, 40.0, 20.0), 1))
SIDES = pytest.mark.parametrize("side", ["left", "right"])


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return DeepseekPair.make(tmp_path_factory.mktemp("deepseek_vl2"))


@pytest.fixture(scope="module")
def samples(pair):
    return make_samples(pair, SPECS)


@pytest.fixture(scope="module")
def answers(pair, samples):
    """STEPS greedy tokens of the reference for every sample, by full re-forward."""
    return [pair.greedy(prompt, images, STEPS) for prompt, images in samples]


def test_features_and_separators(pair, samples):
    """Tower, joined patches, projector, newlines at row ends, one separator of views."""
    features = jax.jit(lambda params, arrays: nnx.merge(pair.graphdef, params).features(arrays))
    for prompt, images in samples:
        canvases = CANVASES if len(images) <= 2 else [[SIDE, SIDE]]
        with torch.no_grad():
            found = [pair.reference.features(views(one, canvases, SIDE)) for one in images]
        arrays = jax.tree.map(lambda a: jnp.asarray(a)[None], prompt.images)
        got = np.asarray(features(pair.params, arrays))[0]
        assert_close(got, torch.cat(found), 1e-5, "features")
        index = prompt.images["index"]
        newline = pair.reference.image_newline.detach().numpy()
        assert np.array_equal(got[index == -1], np.tile(newline, ((index == -1).sum(), 1)))
        assert (index == VIEW_SEPARATOR).sum() == len(images)
        assert len(prompt.grid) == (index >= 0).sum()


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
    check_masked(pair, samples, [(0, 1), (0, 3), (1, 2), (2, 0)])
    check_masked_greedy(pair, samples[0], random_heads(pair, 4, 3), STEPS)


def test_static_heads_equal_the_traced_mask(pair, samples):
    """Over both stacks; one layer loses all heads."""
    drop = frozenset({(0, 1), (2, 0), (2, 3)} | {(1, head) for head in range(4)})
    mask = np.ones((3, 4), np.float32)
    for head in drop:
        mask[head] = 0
    batch = collate([prompt for prompt, _ in samples])

    @jax.jit
    def run(params):
        model = nnx.merge(pair.graphdef, params)
        hidden, _, _ = model.decoder(model.embed(batch), static_heads=drop)
        return model.decoder.logits(hidden)

    got, valid = np.asarray(run(pair.params)), np.asarray(batch.valid)
    traced, _ = forward(pair.graphdef, pair.params, batch, mask)
    assert_close(got[valid], np.asarray(traced)[valid], 1e-5)


@SIDES
def test_attention_and_region_mass_of_answer_rows(pair, samples, side):
    check_attention(pair, samples, BOXES, side)


def test_zero_padding_of_image_arrays_changes_nothing(pair, samples):
    check_image_padding(pair, samples[1], axes=(1,))


def test_every_rule_of_the_routing_matters(pair, samples):
    """On this checkpoint a mistake in any of them shows, so the parity above tests them."""
    batch = collate([samples[0][0]])
    valid = np.asarray(batch.valid)
    logits = np.asarray(forward(pair.graphdef, pair.params, batch)[0])[valid]

    def change(edit) -> float:
        model = nnx.merge(pair.graphdef, pair.params)
        edit(model.decoder.layers)
        return float(np.abs(np.asarray(forward(*nnx.split(model), batch)[0])[valid] - logits).max())

    moe = pair.config.decoder.experts
    for other in (dict(active=2), dict(active=4), dict(scale=1.0)):
        wrong = dataclasses.replace(moe, **other)
        assert change(lambda layers, wrong=wrong: setattr(layers.mlp, "cfg", wrong)) > 0.1, other

    class Renormalised(nnx.Module):
        """Scores whose largest ``active`` sum to one."""

        def __init__(self, router):
            self.router = router

        def __call__(self, x):
            scores = self.router(x)
            return scores / jax.lax.top_k(scores, moe.active)[0].sum(-1, keepdims=True)

    def renormalise(layers):
        layers.mlp.router = Renormalised(layers.mlp.router)

    assert change(renormalise) > 0.1
