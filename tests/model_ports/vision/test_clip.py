"""The CLIP tower against transformers, at every depth."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from support.parity import assert_close, load_params, widen
from transformers import CLIPVisionConfig, CLIPVisionModel

from model_ports.configs import ConfigReader
from model_ports.nn.mlp import gelu, quick_gelu
from model_ports.vision.clip import ClipVit, clip_rules, read_clip


@pytest.fixture(scope="module")
def towers():
    config = CLIPVisionConfig(
        hidden_size=48, intermediate_size=88, num_hidden_layers=4, num_attention_heads=6,
        image_size=70, patch_size=14,
    )  # fmt: skip
    reference = widen(CLIPVisionModel._from_config(config, attn_implementation="eager"), seed=2)
    cfg = read_clip(ConfigReader(config.to_dict()))
    graphdef, state = nnx.split(nnx.eval_shape(lambda: ClipVit(cfg, rngs=nnx.Rngs(0))))
    tensors = {k: v.numpy() for k, v in reference.state_dict().items()}
    abstract = {"vision": nnx.to_pure_dict(state)}
    params = load_params(abstract, clip_rules("", cfg), tensors)["vision"]
    return reference, nnx.merge(graphdef, jax.tree.map(jnp.asarray, params))


def test_every_depth_equals_the_reference(towers):
    reference, ours = towers
    crops = np.random.default_rng(0).normal(size=(3, 3, 70, 70)).astype(np.float32)
    with torch.no_grad():
        states = reference(torch.tensor(crops), output_hidden_states=True).hidden_states
    assert len(states) == 5
    for blocks in range(1, 5):
        got = ours(jnp.asarray(crops), blocks=blocks)
        assert_close(got, states[blocks][:, 1:], 1e-5, f"after {blocks} blocks")
    assert_close(ours(jnp.asarray(crops), blocks=3), states[-2][:, 1:], 1e-5, "second-last")


def test_quick_gelu_is_not_gelu():
    x = torch.linspace(-6, 6, 200)
    expected = x * torch.sigmoid(1.702 * x)
    assert_close(quick_gelu(jnp.asarray(x.numpy())), expected, 1e-6, "quick GELU")
    assert np.abs(gelu(jnp.asarray(x.numpy())) - expected.numpy()).max() > 0.01
