"""What is particular to Phi-4-Reasoning-Vision as a whole; see test_every_port.py for the rest."""

import dataclasses

import jax
import numpy as np
import pytest
import torch
from flax import nnx
from support.parity import assert_close
from support.phi4_rv import PhiPair
from support.vlm_checks import (
    forward,
    make_samples,
)

from model_ports.prompt import collate

# Within the budget, grown and shrunk; two in one prompt.
SPECS = (
    (((61, 40),), "Locate the red square", True),
    (((9, 30), (150, 100)), "What is left of it, output JSON", False),
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return PhiPair.make(tmp_path_factory.mktemp("phi4_rv"))


@pytest.fixture(scope="module")
def samples(pair):
    return make_samples(pair, SPECS)


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


def test_images_are_read_causally(pair, samples):
    """As in the released code: no token sees a later one, within an image neither."""
    prompt, _ = samples[0]
    batch = collate([prompt], multiple=1)
    logits = forward(pair.graphdef, pair.params, batch)
    last = int(prompt.grid.slot[-1])
    index = np.asarray(batch.visual_index).copy()
    index[0, last] = index[0, last - 1]
    changed = dataclasses.replace(batch, visual_index=index)
    other = forward(pair.graphdef, pair.params, changed)
    gap = np.abs(np.asarray(other - logits))[0].max(-1)
    assert gap[:last].max() == 0
    assert gap[last] > 0.1
