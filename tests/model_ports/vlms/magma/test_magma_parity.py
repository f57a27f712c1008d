"""What is particular to Magma as a whole; see test_every_port.py for the rest."""

import copy

import jax
import numpy as np
import pytest
import torch
from flax import nnx
from support.magma import SIDE, TINY, MagmaPair, reference_crops
from support.parity import assert_close, textured_image
from support.vlm_checks import (
    make_samples,
)

from model_ports.prompt import collate
from model_ports.vlms.magma import config

# Two crops side by side, three above each other, one and four in one prompt.
SPECS = (
    (((150, 100),), "Locate the red square", True),
    (((61, 230),), "What is left of it, output JSON", False),
    (((30, 20), (160, 170)), "Compare 0123", True),
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(config.BACKBONES, "convnexttiny", TINY)
        yield MagmaPair.make(tmp_path_factory.mktemp("magma"))


@pytest.fixture(scope="module")
def samples(pair):
    return make_samples(pair, SPECS)


def test_trunk_and_features(pair, samples):
    """The trunk's map, then rows of crops and their separators."""
    arrays = collate([prompt for prompt, _ in samples]).images
    cut = [
        torch.cat([reference_crops(image, SIDE)[0] for image in images]) for _, images in samples
    ]

    @jax.jit
    def run(params, crops):
        model = nnx.merge(pair.graphdef, params)
        return model.vision(crops), model.features(arrays)

    ours, features = map(np.asarray, run(pair.params, torch.cat(cut).numpy()))
    with torch.no_grad():
        maps = pair.reference.trunk(torch.cat(cut)).last_hidden_state.permute(0, 2, 3, 1)
    assert_close(ours, maps, 1e-5, "trunk")
    separator = pair.reference.row_seperator.detach().numpy().reshape(1, -1)
    for (prompt, images), crops, got in zip(samples, cut, features, strict=True):
        assert_close(prompt.images["crops"], crops, 1e-5, "crops")
        index = prompt.images["index"]
        assert_close(got[: len(index)], torch.cat(pair.image_features(images)), 1e-5, "features")
        rows = got[np.flatnonzero(index < 0)]
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
