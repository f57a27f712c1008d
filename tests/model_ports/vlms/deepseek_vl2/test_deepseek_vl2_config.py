"""DeepSeek-VL2's config.json: what is read, and what is refused by name."""

from typing import Any

import jax.numpy as jnp
import pytest
import torch
from support.configs import changed
from support.key_manifest import fake_headers, read_key_manifest
from transformers import DeepseekV2Config, DeepseekV2ForCausalLM

from model_ports.catalogue import published_config
from model_ports.convert.plan import build_plan
from model_ports.errors import UserError
from model_ports.nn.mla import Latent
from model_ports.nn.moe import Experts
from model_ports.port import abstract_model
from model_ports.registry import port_for
from model_ports.vlms.deepseek_vl2 import PORT

NAME = "deepseek-vl2-small"


def published_with(path: str, value: Any) -> dict[str, Any]:
    """The published config with one attribute set; ``...`` takes it out."""
    return changed(published_config(NAME), path, value)


def test_published_values() -> None:
    raw = published_config(NAME)
    assert port_for(raw) is PORT
    config = PORT.read_config(raw)
    d, v, crops = config.decoder, config.vision, config.crops
    assert (d.layers, d.dim, d.heads, d.kv_heads, d.head_dim, d.value_dim, d.mlp_dim, d.vocab) == (
        27, 2048, 16, 16, 192, 128, 10944, 102400,
    )  # fmt: skip
    assert d.latent == Latent(rank=512, nope=128, rope=64, value=128)
    assert d.experts == Experts(count=64, active=6, hidden=1408, shared=2, scale=1.0, first=1)
    assert (d.dense_layers, d.scale, d.norm_eps, d.tied) == (1, 192**-0.5, 1e-6, False)
    assert (d.rope.theta, d.rope.pairs, d.rope.dim, d.rope.axes) == (1e4, "adjacent", 64, 1)
    assert (v.layers, v.dim, v.heads, v.mlp_dim, v.norm_eps) == (27, 1152, 16, 4304, 1e-6)
    assert (v.side, v.patch, crops.side, crops.tokens, crops.joined) == (27, 14, 384, 14, 2)
    assert (len(crops.canvases), crops.canvases[1], crops.cropping) == (23, (384, 768), True)


def test_parameters_over_both_stacks() -> None:
    config = PORT.read_config(published_config(NAME))
    _, params = abstract_model(PORT, config, jnp.bfloat16)
    decoder = params["decoder"]
    dense, layers = decoder["dense"], decoder["layers"]
    assert dense["mlp"]["gate"]["kernel"].shape == (1, 2048, 10944)
    assert layers["mlp"]["experts"]["gate"]["kernel"].shape == (26, 64, 2048, 1408)
    assert layers["mlp"]["experts"]["down"]["kernel"].shape == (26, 64, 1408, 2048)
    assert layers["mlp"]["shared"]["up"]["kernel"].shape == (26, 2048, 2816)
    assert layers["mlp"]["router"]["kernel"].shape == (26, 2048, 64)
    for stack, count in ((dense, 1), (layers, 26)):
        assert stack["attn"]["kv_a"]["kernel"].shape == (count, 2048, 576)
        assert stack["attn"]["kv_b"]["kernel"].shape == (count, 512, 16, 256)
        assert stack["attn"]["o"]["kernel"].shape == (count, 16, 128, 2048)


def test_language_model_of_the_manifest_is_what_transformers_builds() -> None:
    text = published_config(NAME)["language_config"]
    sizes = {k: v for k, v in text.items() if k not in ("lm_head", "rm_head", "torch_dtype")}
    with torch.device("meta"):
        model = DeepseekV2ForCausalLM(DeepseekV2Config(**sizes))
    expected: dict[str, tuple[int, ...]] = {}
    for name, value in model.state_dict().items():
        head, _, kind = f"language.{name}".rpartition(".experts.")
        if not head:
            expected[kind] = tuple(value.shape)
        for expert in range(len(value) if head else 0):
            rows, columns = value.shape[1:]
            parts = ("gate", "up") if kind == "gate_up_proj" else ("down",)
            for part in parts:
                key = f"{head}.experts.{expert}.{part}_proj.weight"
                expected[key] = (rows // len(parts), columns)
    keys = read_key_manifest(NAME)
    assert {k: s for k, s in keys.items() if k.startswith("language.")} == expected


def test_a_dense_layer_has_no_experts_and_the_others_no_dense_mlp() -> None:
    keys, raw = read_key_manifest(NAME), published_config(NAME)
    for moved in ("language.model.layers.0.mlp.gate.weight", "language.model.layers.1.mlp.up_proj"):
        with pytest.raises(UserError, match=moved.replace(".", r"\.")):
            build_plan(fake_headers(keys | {moved: (64, 2048)}), raw, PORT, None)


def test_values_that_published_files_leave_out() -> None:
    for path, default in (
        ("language_config.kv_lora_rank", 512),
        ("language_config.vocab_size", 102400),
    ):
        assert PORT.read_config(published_with(path, ...)) == PORT.read_config(
            published_with(path, default)
        )
    for name, value in (
        ("qk_nope_head_dim", 128), ("qk_rope_head_dim", 64), ("v_head_dim", 128),
        ("rms_norm_eps", 1e-6), ("rope_theta", 10000), ("routed_scaling_factor", 1.0),
        ("scoring_func", "softmax"), ("norm_topk_prob", False), ("use_mla", True),
        ("rope_scaling", None), ("aux_loss_alpha", 0.001), ("seq_aux", True),
    ):  # fmt: skip
        stated = PORT.read_config(published_with(f"language_config.{name}", value))
        assert stated == PORT.read_config(published_config(NAME)), name
    other = PORT.read_config(published_with("language_config.v_head_dim", 96)).decoder
    assert (other.value_dim, other.head_dim) == (96, 192)


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("language_config.q_lora_rank", 1536, "q_lora_rank"),
        ("language_config.q_lora_rank", ..., "q_lora_rank"),
        ("language_config.use_mla", False, "use_mla"),
        ("language_config.scoring_func", "sigmoid", "scoring_func"),
        ("language_config.topk_method", "noaux_tc", "topk_method"),
        ("language_config.topk_method", "group_limited_greedy", "topk_method"),
        ("language_config.norm_topk_prob", True, "norm_topk_prob"),
        ("language_config.n_group", 8, "n_group"),
        ("language_config.moe_layer_freq", 2, "moe_layer_freq"),
        ("language_config.n_routed_experts", ..., "n_routed_experts"),
        ("language_config.num_experts_per_tok", 65, "num_experts_per_tok"),
        ("language_config.num_experts_per_tok", 0, "num_experts_per_tok"),
        ("language_config.n_shared_experts", 0, "n_shared_experts"),
        ("language_config.first_k_dense_replace", 27, "first_k_dense_replace"),
        ("language_config.first_k_dense_replace", -1, "first_k_dense_replace"),
        ("language_config.num_key_value_heads", 4, "num_key_value_heads"),
        ("language_config.attention_bias", True, "attention_bias"),
        ("language_config.rope_scaling", {"type": "yarn", "factor": 40}, "yarn|factor"),
        ("language_config.rope_scaling", {"type": "dynamic", "factor": 2.0}, "dynamic"),
        ("language_config.hidden_act", "gelu", "hidden_act"),
        ("language_config.qk_rope_head_dim", 63, "qk_rope_head_dim"),
        ("language_config.kv_lora_rank", None, "kv_lora_rank"),
        ("language_config.kv_lora_rank", 0, "kv_lora_rank"),
        ("language_config.qk_nope_head_dim", 0, "qk_nope_head_dim"),
        ("language_config.qk_rope_head_dim", 0, "qk_rope_head_dim"),
        ("language_config.v_head_dim", -128, "v_head_dim"),
        ("language_config.model_type", "deepseek_v3", "model_type"),
        ("language_config.rm_head", True, "rm_head"),
        ("language_config.something_new", 1, "something_new"),
        ("vision_config.class_token", True, "class_token"),
        ("vision_config.global_pool", "avg", "global_pool"),
        ("vision_config.width", 1150, "width"),
        ("vision_config.width", {"clip-l-14-224": {}}, "width"),
        ("projector_config.projector_type", "linear", "projector_type"),
        ("projector_config.downsample_ratio", 4, "downsample_ratio"),
        ("projector_config.n_embed", 1280, "n_embed"),
        ("projector_config.input_dim", 2048, "input_dim"),
        ("tile_tag", "1D", "tile_tag"),
        ("global_view_pos", "tail", "global_view_pos"),
        ("candidate_resolutions", [[1024, 1024]], "candidate_resolutions"),
        ("candidate_resolutions", [], "candidate_resolutions"),
        ("candidate_resolutions", ..., "candidate_resolutions"),
    ],
)
def test_refuses_what_it_cannot_honour_by_name(path: str, value: Any, named: str) -> None:
    with pytest.raises(UserError, match=named):
        PORT.read_config(published_with(path, value))
