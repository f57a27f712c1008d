"""Pixel shuffle and patch order of InternViT."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from support.parity import assert_close
from transformers import InternVLModel

from model_ports.vision.intern_vit import pixel_shuffle
from model_ports.vision.vit import patchify


@pytest.mark.parametrize(("side", "factor"), [(6, 2), (8, 2), (6, 3), (4, 1)])
def test_pixel_shuffle_keeps_rows_and_columns(side, factor):
    """Channels say where they come from: (row, column) of the patch."""
    row, column = np.divmod(np.arange(side * side), side)
    x = jnp.asarray(np.stack([row, column], 1)[None], jnp.float32)
    out = np.asarray(pixel_shuffle(x, factor)[0])
    n = side // factor
    assert out.shape == (n * n, 2 * factor * factor)
    for token, channels in enumerate(out):
        i, j = divmod(token, n)
        expected = [
            [factor * i + dy, factor * j + dx] for dy in range(factor) for dx in range(factor)
        ]
        assert channels.reshape(-1, 2).tolist() == expected


def test_pixel_shuffle_equals_the_reference():
    x = np.random.default_rng(0).normal(size=(3, 36, 5)).astype(np.float32)
    square = torch.tensor(x).reshape(3, 6, 6, 5)
    expected = InternVLModel.pixel_shuffle(None, square, scale_factor=0.5).reshape(3, 9, 20)
    np.testing.assert_array_equal(np.asarray(pixel_shuffle(jnp.asarray(x), 2)), expected.numpy())


def test_patches_in_the_order_of_a_convolution():
    rng = np.random.default_rng(1)
    tiles = rng.normal(size=(2, 3, 12, 12)).astype(np.float32)
    weight = rng.normal(size=(8, 3, 4, 4)).astype(np.float32)
    expected = torch.nn.functional.conv2d(torch.tensor(tiles), torch.tensor(weight), stride=4)
    ours = np.asarray(patchify(jnp.asarray(tiles), 4)) @ weight.reshape(8, -1).T
    assert_close(ours, expected.flatten(2).transpose(1, 2), 1e-5, "patches")
