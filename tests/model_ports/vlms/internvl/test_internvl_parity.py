"""What is particular to InternVL as a whole; see test_every_port.py for the rest."""

import jax
import numpy as np
import pytest
import torch
from flax import nnx
from support.internvl import Tiny, make_tiny, published
from support.parity import assert_close, textured_image
from support.vlm_checks import forward, rows

from model_ports.prompt import Prompt, collate

PROMPT = ("Where is the red square?", [textured_image(250, 170, 1)])  # seven tiles


def reference_inputs(prompt: Prompt) -> dict[str, torch.Tensor]:
    inputs = {"input_ids": torch.tensor(prompt.tokens[None].astype(np.int64))}
    if prompt.images:
        inputs["pixel_values"] = torch.tensor(prompt.images["tiles"])
    return inputs


def reference_logits(tiny, prompt) -> np.ndarray:
    with torch.no_grad():
        return tiny.reference(**reference_inputs(prompt)).logits[0].numpy()


def port_logits(tiny: Tiny, prompt: Prompt) -> np.ndarray:
    """Logits of a prompt without its padding."""
    out = forward(tiny.graphdef, tiny.params, collate([prompt]))
    return rows(out[0], prompt, "left")


def test_vision_tower_and_projector(tmp_path):
    tiny = make_tiny(tmp_path, seed=3)
    pixels = tiny.processor.prepare(*PROMPT).images["tiles"]
    assert pixels.shape == (7, 3, 84, 84)

    @jax.jit
    def run(params, pixels):
        model = nnx.merge(tiny.graphdef, params)
        return model.vision(pixels), model.features({"tiles": pixels[None]})

    with torch.no_grad():
        tower = tiny.reference.model.vision_tower(torch.tensor(pixels)).last_hidden_state
        features = tiny.reference.model.get_image_features(torch.tensor(pixels)).pooler_output
    patches, ours = run(tiny.params, pixels)
    assert_close(patches, tower[:, 1:], 1e-5, "vision tower")
    assert_close(ours[0], features.reshape(-1, features.shape[-1]), 1e-5, "projected features")


def test_contiguous_split_of_wqkv_is_garbage(tmp_path):
    """It passes every shape check, so only parity can tell."""
    right = make_tiny(tmp_path / "hf", seed=3, backbone="llama")
    wrong = published(right, tmp_path / "remote", contiguous=True)
    prompt = right.processor.prepare(*PROMPT)
    ours, expected = port_logits(wrong, prompt), reference_logits(right, prompt)
    assert ours.shape == expected.shape
    assert np.abs(ours - expected).max() > 0.2 * np.abs(expected).max()


@pytest.mark.parametrize("backbone", ["qwen2", "llama"])
def test_dynamic_ntk_beyond_the_trained_length(tmp_path, backbone):
    """Inert up to the trained length, then as in transformers."""
    long = make_tiny(tmp_path / "long", seed=11, backbone=backbone)
    short = make_tiny(tmp_path / "short", seed=11, backbone=backbone, trained_length=64)
    prompt = short.processor.prepare(*PROMPT)
    assert len(prompt) > 64
    ours = port_logits(short, prompt)
    assert_close(ours, reference_logits(short, prompt), 1e-4, "logits")
    plain = port_logits(long, prompt)
    assert_close(plain, reference_logits(long, prompt), 1e-4, "logits")
    assert np.abs(ours - plain).max() > 1e-2 * np.abs(plain).max()
