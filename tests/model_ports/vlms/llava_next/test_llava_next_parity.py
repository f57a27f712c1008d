"""What is particular to LLaVA-NeXT as a whole; see test_every_port.py for the rest."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from support.llava import LlavaPair
from support.parity import assert_close
from support.vlm_checks import (
    make_samples,
)

# Wide and tall with letterbox padding, one crop's shape, two in one prompt.
SPECS = (
    (((150, 100),), "Locate the red square", True),
    (((61, 230),), "What is left of it, output JSON", False),
    (((30, 20), (120, 170)), "Compare 0123", True),
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return LlavaPair.make(tmp_path_factory.mktemp("llava_next"))


@pytest.fixture(scope="module")
def samples(pair):
    return make_samples(pair, SPECS)


def test_tower_and_features(pair, samples):
    """Second-last block without the class token, then base view, rows and newlines."""
    model = nnx.merge(pair.graphdef, pair.params)
    for prompt, images in samples:
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
