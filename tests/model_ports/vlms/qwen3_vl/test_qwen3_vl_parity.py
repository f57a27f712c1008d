"""What is particular to Qwen3-VL as a whole; see test_every_port.py for the rest."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from support.parity import assert_close
from support.qwen3 import Qwen3Pair
from support.vlm_checks import (
    check_layer,
    check_logits,
    forward,
    make_samples,
    rows,
)

from model_ports.port import abstract_model
from model_ports.prompt import collate
from model_ports.vlms.qwen3_vl import PORT

SPECS = (
    (((150, 100),), "Locate the red square", True),
    (((30, 20), (120, 170)), "Compare 0123", False),
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return Qwen3Pair.make(tmp_path_factory.mktemp("qwen3"))


@pytest.fixture(scope="module")
def samples(pair):
    return make_samples(pair, SPECS)


def test_decoder_layer_with_interleaved_axes_and_normed_heads(pair, samples):
    check_layer(pair, samples[1][0], layer=1, own=slice(0, 12))


def test_deepstack_matters_and_is_the_references(pair, samples):
    """Without DeepStack both models change, and stay equal."""
    prompt, images = samples[0]
    batch = collate([prompt])
    with_it = forward(pair.graphdef, pair.params, batch)
    params = copy.deepcopy(pair.params)
    for leaf in params["vision"]["deepstack"]["mlp"]["fc2"].values():
        leaf[...] = 0
    without = forward(pair.graphdef, params, batch)
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
    right = forward(pair.graphdef, pair.params, batch)
    wrong = forward(graphdef, pair.params, batch)
    assert np.abs(right - wrong).max() > 0.002 * np.abs(right).max()  # 20 times the tolerance


def test_other_seed_and_tied_head(tmp_path):
    tied = Qwen3Pair.make(tmp_path, seed=7, text={"tie_word_embeddings": True})
    assert tied.config.decoder.tied
    samples = make_samples(tied, [(((211, 283),), "Which one", True)])
    check_logits(tied, samples, "right")
