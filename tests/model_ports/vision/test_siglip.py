"""The SigLIP tower against transformers' SiglipVisionModel in float32."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from support.parity import assert_close, load_params, saved_tensors, widen
from transformers import SiglipVisionConfig, SiglipVisionModel

from model_ports.vision.siglip import Siglip, siglip_rules
from model_ports.vision.vit import VitConfig, patchify

CFG = VitConfig(layers=3, dim=48, heads=4, mlp_dim=72, side=5, patch=14, norm_eps=1e-3)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: Any) -> Any:
    hf = SiglipVisionConfig(
        hidden_size=48, intermediate_size=72, num_hidden_layers=3, num_attention_heads=4,
        image_size=70, patch_size=14, layer_norm_eps=1e-3, vision_use_head=False,
        attn_implementation="eager",
    )  # fmt: skip
    model = widen(SiglipVisionModel(hf), seed=2)
    folder = tmp_path_factory.mktemp("siglip")
    pixels = np.random.default_rng(1).normal(0, 1, (2, 3, 70, 70)).astype(np.float32)
    with torch.no_grad():
        out = model(torch.tensor(pixels), output_hidden_states=True)
    tensors = saved_tensors(model, folder)
    prefix = min(tensors, key=len).split("embeddings")[0].split("post_layernorm")[0]
    return pixels, out, tensors, prefix


def tower(reference: Any, cfg: VitConfig, *, final_norm: bool) -> Siglip:
    """Our tower with the reference's weights."""
    _, _, tensors, prefix = reference
    module = nnx.eval_shape(
        lambda: Siglip(cfg, rngs=nnx.Rngs(0), dtype=jnp.float32, final_norm=final_norm)
    )
    graphdef, state = nnx.split(module)
    rules = siglip_rules(prefix, cfg, final_norm=final_norm)
    used = {
        name: value
        for name, value in tensors.items()
        if final_norm or not ("post_layernorm" in name or f"layers.{cfg.layers}." in name)
    }
    params = load_params({"vision": nnx.to_pure_dict(state)}, rules, used)["vision"]
    out: Siglip = nnx.merge(graphdef, jax.tree.map(jnp.asarray, params))
    return out


def test_features_and_patches(reference: Any) -> None:
    pixels, out, _, _ = reference
    ours = tower(reference, CFG, final_norm=True)
    patches = patchify(jnp.asarray(pixels), CFG.patch)
    assert patches.shape == (2, 25, 3 * 14 * 14)
    assert_close(ours(patches), out.last_hidden_state, 1e-5, "features")


def test_features_of_an_earlier_block(reference: Any) -> None:
    pixels, out, _, _ = reference
    ours = tower(reference, dataclasses.replace(CFG, layers=2), final_norm=False)
    features = ours(patchify(jnp.asarray(pixels), CFG.patch))
    assert_close(features, out.hidden_states[-2], 1e-5, "features")


def test_padded_patches_and_given_positions_change_nothing(reference: Any) -> None:
    pixels, out, _, _ = reference
    ours = tower(reference, CFG, final_norm=True)
    patches = jnp.pad(patchify(jnp.asarray(pixels), 14), ((0, 0), (0, 7), (0, 0)))
    table = jnp.pad(ours.positions[...][None], ((0, 0), (0, 7), (0, 0)), constant_values=3.0)
    valid = jnp.broadcast_to(jnp.arange(32) < 25, (2, 32))
    got = ours(patches, table, valid)
    assert np.isfinite(got).all()
    assert_close(got[:, :25], out.last_hidden_state, 1e-5, "features")
