"""What is particular to PaliGemma 2 as a whole; see test_every_port.py for the rest."""

import dataclasses

import numpy as np
import pytest
import torch
from flax import nnx
from support.paligemma import PaliPair
from support.parity import assert_close
from support.vlm_checks import (
    forward,
    make_samples,
)

from model_ports.prompt import collate

STEPS = 12
SPECS = ((((150, 100),), "detect red square", True),)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return PaliPair.make(tmp_path_factory.mktemp("paligemma2"))


@pytest.fixture(scope="module")
def samples(pair):
    return make_samples(pair, SPECS)


def test_every_rule_of_the_mask_and_the_logits_matters(pair, samples):
    """On this checkpoint a mistake in any of them shows, so that parity tests them."""
    prompt = samples[0][0].extend(pair.greedy(*samples[0], STEPS))
    batch = collate([prompt], multiple=1)
    logits = forward(pair.graphdef, pair.params, batch)
    start = prompt.prefix

    def change(other) -> tuple[float, float]:
        gap = np.abs(np.asarray(other - logits))[0].max(-1)
        return gap[: start - 1].max(), gap[start:].max()

    causal = forward(pair.graphdef, pair.params, dataclasses.replace(batch, prefix=None))
    assert min(change(causal)) > 0.5
    all_prefix = dataclasses.replace(batch, prefix=batch.valid)
    assert min(change(forward(pair.graphdef, pair.params, all_prefix))) > 0.5
    cfg = pair.config.decoder
    assert cfg.windows == (7, 0, 7, 0)
    for name, value, prefix_changes in (
        ("windows", (), False),
        ("windows", (0, 7, 0, 7), False),
        ("attn_softcap", None, True),
        ("attn_scale", cfg.head_dim**-0.5, True),
    ):
        model = nnx.merge(pair.graphdef, pair.params)
        changed = dataclasses.replace(cfg, **{name: value})
        model.decoder.cfg = changed
        model.decoder.layers.attn.cfg = changed
        before, after = change(forward(*nnx.split(model), batch))
        assert after > 0.1, name
        assert (before > 0.1) == prefix_changes, name


def test_a_forward_without_token_types_is_causal(pair, samples):
    """transformers' silent default equals the port without a prefix."""
    prompt, images = samples[0]
    inputs = pair.inputs(prompt, images)
    del inputs["token_type_ids"]
    with torch.no_grad():
        expected = pair.reference(**inputs, use_cache=False).logits[0]
    batch = dataclasses.replace(collate([prompt], multiple=1), prefix=None)
    assert_close(forward(pair.graphdef, pair.params, batch)[0], expected, 1e-4)


def test_image_features_are_not_scaled_and_text_is(pair, samples):
    prompt, images = samples[0]
    model = nnx.merge(pair.graphdef, pair.params)
    inputs = model.embed(collate([prompt], multiple=1))
    with torch.no_grad():
        pixels = pair.inputs(prompt, images)["pixel_values"]
        tower = pair.reference.model
        hidden = tower.vision_tower(pixels).last_hidden_state
        features = tower.multi_modal_projector(hidden)[0]
        words = tower.language_model.embed_tokens(torch.tensor(prompt.tokens[16:]).long())
    assert_close(inputs.x[0, :16], features, 1e-5, "features")
    assert_close(inputs.x[0, 16:], words, 1e-6, "embeddings")
    table = pair.params["decoder"]["embed"]["embedding"]
    plain = table[prompt.tokens[16:]]
    assert np.abs(words.numpy() - plain).max() > 1  # the scale shows
