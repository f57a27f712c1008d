"""What is particular to Qwen2.5-VL as a whole; see test_every_port.py for the rest."""

import numpy as np
import pytest
import torch
from support.qwen25 import Pair
from support.vlm_checks import check_layer, check_logits, make_samples

from model_ports.prompt import collate
from vrh_jax.engine.generate import generate


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return Pair.make(tmp_path_factory.mktemp("qwen25"))


@pytest.fixture(scope="module")
def sample(pair):
    """(prompt, images)."""
    return make_samples(pair, [(((150, 100),), "Locate the red square", True)])[0]


def test_decoder_layer_with_section_rope(pair, sample):
    check_layer(pair, sample[0], layer=1, own=slice(0, 8))


def test_positions_and_features_matter_to_the_reference(pair, sample):
    """Parity would notice 1-D positions, so it is not blind."""
    prompt, images = sample
    inputs = pair.inputs(prompt, images)
    right = pair.forward(prompt, images).logits
    with torch.no_grad():
        flat = pair.reference(
            **inputs, position_ids=torch.arange(len(prompt)).expand(3, 1, -1), use_cache=False
        ).logits
    assert (right - flat).abs().max() > 0.05 * right.abs().max()


def test_other_seed_tied_head_and_more_windows(tmp_path):
    tied = Pair.make(tmp_path, seed=7, text={"tie_word_embeddings": True})
    assert tied.config.decoder.tied
    specs = [(((211, 283),), "Which one", True), (((300, 40),), "a", True)]
    check_logits(tied, make_samples(tied, specs), "right")


def test_answers_end_at_any_end_token(pair, sample):
    tokens = pair.greedy(*sample, 6)
    batch = collate([sample[0]])
    got = generate(pair.graphdef, pair.params, batch, max_new=8, eos_ids=[399, tokens[4]])
    length = tokens.index(tokens[4])
    assert int(got.lengths[0]) == length
    assert np.asarray(got.tokens)[0].tolist() == tokens[:length] + [-1] * (8 - length)
