"""DeepSeek-V2's language backbone as DeepSeek-VL2-Small has it: latent attention, one dense layer,
then layers of many small experts.

Reference: transformers ``DeepseekV2ForCausalLM``. Files hold every expert as tensors of its own;
they are stacked when a checkpoint is converted and taken apart again on export. Published configs
leave out what equals the defaults of their configuration class; they are the defaults here.
"""

import dataclasses

from model_ports.backbones.llama_like import default_rope_theta, outer_rules, read_rope
from model_ports.block import DecoderConfig
from model_ports.configs import ConfigReader
from model_ports.convert.rules import Rule
from model_ports.errors import UserError
from model_ports.nn.mla import Latent
from model_ports.nn.moe import Experts

QUERY_RANK = 1536  # where a config names none


def read_deepseek_moe(reader: ConfigReader, *, tied: bool | None = None) -> DecoderConfig:
    """DecoderConfig of a ``deepseek_v2`` config; the caller finishes the reader.

    Args:
        tied: overrides ``tie_word_embeddings`` where a wrapper config owns it.

    Raises:
        UserError: compressed queries, attention without latents, another router, scaled RoPE.
    """
    own_tied = reader.take("tie_word_embeddings", bool, False)
    heads, dim = reader.take("num_attention_heads", int), reader.take("hidden_size", int)
    reader.expect("use_mla", True)  # DeepSeek-VL2-Tiny has plain attention
    reader.raw.setdefault("q_lora_rank", QUERY_RANK)
    reader.expect("q_lora_rank", None)  # the largest model compresses queries, too
    reader.expect("num_key_value_heads", heads, None)
    reader.expect("attention_bias", False)
    reader.expect("mlp_bias", False)
    reader.expect("hidden_act", "silu")
    reader.expect("pretraining_tp", 1)
    reader.expect("lm_head", True)
    reader.expect("rm_head", False)
    # Of the loss in training, and of how experts were spread over devices.
    reader.ignore(["aux_loss_alpha", "seq_aux", "ep_size"])
    latent = Latent(
        rank=reader.take("kv_lora_rank", int, 512),
        nope=reader.take("qk_nope_head_dim", int, 128),
        rope=reader.take("qk_rope_head_dim", int, 64),
        value=reader.take("v_head_dim", int, 128),
    )
    if latent.rope % 2:
        raise UserError(
            f"{reader.where}: qk_rope_head_dim = {latent.rope}; expected an even number"
        )
    default_rope_theta(reader)
    reader.raw.setdefault("max_position_embeddings", 2048)
    rope = read_rope(reader, pairs="adjacent")
    if rope.dynamic_factor is not None:
        raise UserError(f"{reader.where}: dynamic RoPE is not supported for this architecture")
    layers = reader.take("num_hidden_layers", int)
    return DecoderConfig(
        vocab=reader.take("vocab_size", int, 102400),
        layers=layers,
        dim=dim,
        heads=heads,
        kv_heads=heads,
        head_dim=latent.head_dim,
        mlp_dim=reader.take("intermediate_size", int),
        norm_eps=reader.take("rms_norm_eps", float, 1e-6),
        rope=dataclasses.replace(rope, dim=latent.rope),
        tied=own_tied if tied is None else tied,
        latent=latent,
        experts=_read_experts(reader, layers),
    )


def _read_experts(reader: ConfigReader, layers: int) -> Experts:
    reader.expect("scoring_func", "softmax")
    reader.expect("topk_method", "greedy")
    reader.expect("norm_topk_prob", False)
    reader.expect("moe_layer_freq", 1)
    reader.expect("n_group", 1, None)
    reader.expect("topk_group", 1, None)
    experts = Experts(
        count=reader.take("n_routed_experts", int),
        active=reader.take("num_experts_per_tok", int),
        hidden=reader.take("moe_intermediate_size", int),
        shared=reader.take("n_shared_experts", int),
        scale=reader.take("routed_scaling_factor", float, 1.0),
        first=reader.take("first_k_dense_replace", int, 0),
    )
    if experts.active > experts.count:
        raise UserError(
            f"{reader.where}: num_experts_per_tok = {experts.active} of {experts.count} experts; "
            f"expected 1 to {experts.count}"
        )
    if not 0 <= experts.first < layers:
        raise UserError(
            f"{reader.where}: first_k_dense_replace = {experts.first}; expected 0 to {layers - 1}"
        )
    return experts


def deepseek_moe_rules(cfg: DecoderConfig, *, model: str, head: str) -> list[Rule]:
    """Key table of the decoder, arguments as in ``outer_rules``."""
    layer, first = f"{model}layers.{{l}}.", cfg.dense_layers
    rules = outer_rules(cfg, model=model, head=head)
    if first:
        rules += _attention(layer, "decoder/dense/", 0)
        rules += _mlp(f"{layer}mlp.", "decoder/dense/mlp/", 0)
    ours = "decoder/layers/"
    rules += _attention(layer, ours, first)
    rules.append(Rule(f"{layer}mlp.gate.weight", f"{ours}mlp/router/kernel", "linear", first=first))
    rules += _mlp(f"{layer}mlp.shared_experts.", f"{ours}mlp/shared/", first)
    rules += _mlp(f"{layer}mlp.experts.{{e}}.", f"{ours}mlp/experts/", first)
    return rules


def _attention(layer: str, ours: str, first: int) -> list[Rule]:
    """Attention and the two norms of the layers from ``first`` on."""
    parts = {"q_proj": "q", "kv_a_proj_with_mqa": "kv_a", "kv_b_proj": "kv_b", "o_proj": "o"}
    norms = {
        "input_layernorm": "pre_attn_norm",
        "post_attention_layernorm": "pre_mlp_norm",
        "self_attn.kv_a_layernorm": "attn/kv_norm",
    }
    return [
        *(
            Rule(
                f"{layer}self_attn.{key}.weight", f"{ours}attn/{name}/kernel", "linear", first=first
            )
            for key, name in parts.items()
        ),
        *(
            Rule(f"{layer}{key}.weight", f"{ours}{name}/scale", "vector", first=first)
            for key, name in norms.items()
        ),
    ]


def _mlp(theirs: str, ours: str, first: int) -> list[Rule]:
    return [
        Rule(f"{theirs}{part}_proj.weight", f"{ours}{part}/kernel", "linear", first=first)
        for part in ("gate", "up", "down")
    ]
