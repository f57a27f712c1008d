"""The Phi backbone against transformers' Phi3ForCausalLM: whole and partial rotation, tied and
separate heads."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from support.parity import assert_close, load_params, widen
from transformers import Phi3Config, Phi3ForCausalLM

from model_ports.backbones.phi import phi_rules, read_phi
from model_ports.configs import ConfigReader
from model_ports.decoder import Decoder
from model_ports.vlm import VLM, Batch

T = 11


def make(partial: float, tied: bool) -> tuple[Any, Any]:
    """(reference, our model with its weights)."""
    rope = {"rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": partial}
    hf = Phi3Config(
        vocab_size=80, hidden_size=96, intermediate_size=56, num_hidden_layers=2,
        num_attention_heads=6, num_key_value_heads=3, rms_norm_eps=1e-3, rope_parameters=rope,
        tie_word_embeddings=tied, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    reference = widen(Phi3ForCausalLM._from_config(hf, attn_implementation="eager"), seed=4)
    reader = ConfigReader(json.loads(hf.to_json_string()))
    cfg = read_phi(reader)
    reader.finish()
    abstract = nnx.eval_shape(lambda: VLM(Decoder(cfg, rngs=nnx.Rngs(0), dtype=jnp.float32)))
    graphdef, state = nnx.split(abstract)
    tensors = {name: value.numpy() for name, value in reference.state_dict().items()}
    rules = phi_rules(cfg, model="model.", head="lm_head.weight")
    params = load_params(nnx.to_pure_dict(state), rules, tensors)
    return reference, nnx.merge(graphdef, jax.tree.map(jnp.asarray, params))


@pytest.mark.parametrize(("partial", "tied"), [(1.0, False), (0.75, True)])
def test_logits(partial: float, tied: bool) -> None:
    reference, model = make(partial, tied)
    assert (model.decoder.cfg.rope.dim, model.decoder.cfg.tied) == (int(16 * partial), tied)
    tokens = np.random.default_rng(0).integers(3, 80, (2, T))
    with torch.no_grad():
        expected = reference(torch.tensor(tokens), use_cache=False).logits
    batch = Batch(
        tokens=jnp.asarray(tokens),
        valid=jnp.ones((2, T), bool),
        positions=jnp.broadcast_to(jnp.arange(T), (1, 2, T)),
        visual_index=jnp.full((2, T), -1),
        images={},
    )

    @nnx.jit
    def run(model: VLM, batch: Batch) -> jax.Array:
        return model.decoder.logits(model.decoder(model.embed(batch))[0])

    assert_close(run(model, batch), expected, 1e-4, "logits")


def test_rows_of_the_fused_tensors() -> None:
    """Query heads, then key heads, then value heads; gate, then up."""
    reference, model = make(1.0, False)
    layer = reference.model.layers[1]
    qkv, gate_up = layer.self_attn.qkv_proj.weight.detach(), layer.mlp.gate_up_proj.weight.detach()
    ours = model.decoder.layers
    for name, first, heads in (("q", 0, 6), ("k", 6, 3), ("v", 9, 3)):
        rows = qkv[first * 16 : (first + heads) * 16].reshape(heads, 16, 96)
        kernel = getattr(ours.attn, name).kernel[...][1]
        assert np.array_equal(kernel, rows.permute(2, 0, 1))
    for name, rows in (("gate", gate_up[:56]), ("up", gate_up[56:])):
        assert np.array_equal(getattr(ours.mlp, name).kernel[...][1], rows.T)
