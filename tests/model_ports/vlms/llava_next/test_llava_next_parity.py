"""What is particular to LLaVA-NeXT as a whole; see test_every_port.py for the rest."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from support.llava import LlavaPair
from support.parity import assert_close
from support.vlm_checks import make_samples

from model_ports.prompt import collate

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
    arrays = collate([prompt for prompt, _ in samples]).images
    crops = np.concatenate([prompt.images["crops"] for prompt, _ in samples])

    @jax.jit
    def run(params):
        model = nnx.merge(pair.graphdef, params)
        return model.vision(jnp.asarray(crops), blocks=3), model.features(arrays)

    ours, features = map(np.asarray, run(pair.params))
    reference = pair.reference.model
    with torch.no_grad():
        states = reference.vision_tower(torch.tensor(crops), output_hidden_states=True)
    assert_close(ours, states.hidden_states[-2][:, 1:], 1e-5, "tower")
    newline = reference.image_newline.detach().numpy()
    for (prompt, images), got in zip(samples, features, strict=True):
        with torch.no_grad():
            expected = reference.get_image_features(**pair.pixels(images)).pooler_output
        index = prompt.images["index"]
        assert_close(got[: len(index)], torch.cat(tuple(expected)), 1e-5, "features")
        rows = got[np.flatnonzero(index < 0)]
        assert len(rows) > 0
        assert np.array_equal(rows, np.broadcast_to(newline, rows.shape))
