"""What is particular to GLM-4.6V-Flash as a whole; see test_every_port.py for the rest."""

import dataclasses

import numpy as np
import pytest
from support.glm4v import GlmPair
from support.vlm_checks import (
    check_layer,
    forward,
    make_samples,
    rows,
)

from model_ports.port import abstract_model
from model_ports.prompt import collate
from model_ports.vlms.glm4v import PORT

SPECS = ((((150, 100),), "Locate the red square", True),)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return GlmPair.make(tmp_path_factory.mktemp("glm4v"))


@pytest.fixture(scope="module")
def samples(pair):
    return make_samples(pair, SPECS)


def test_decoder_layer_with_adjacent_pairs_and_four_norms(pair, samples):
    check_layer(pair, samples[0][0], layer=1, own=slice(None, None, 2))


@pytest.mark.parametrize("wrong", [{"pairs": "halves"}, {"sections": (8, 0, 0)}])
def test_the_comparison_would_notice_another_rotation(pair, samples, wrong):
    prompt, images = samples[0]
    decoder = pair.config.decoder
    rope = dataclasses.replace(decoder.rope, **wrong)
    config = dataclasses.replace(pair.config, decoder=dataclasses.replace(decoder, rope=rope))
    graphdef, _ = abstract_model(PORT, config)
    logits = forward(graphdef, pair.params, collate([prompt]))
    expected = pair.forward(prompt, images).logits[0].numpy()
    difference = np.abs(rows(logits[0], prompt, "left") - expected).max()
    assert difference > 0.05 * np.abs(expected).max()
