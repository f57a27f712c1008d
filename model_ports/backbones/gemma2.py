"""Gemma 2 language backbone: norms that multiply by 1 + weight, four of them a layer, scaled
embeddings, soft caps on attention and output logits, and a sliding window on some layers."""

import dataclasses
from typing import Any

from model_ports.backbones.llama_like import default_rope_theta, llama_like_rules, read_llama_like
from model_ports.block import DecoderConfig
from model_ports.configs import ConfigReader
from model_ports.convert.rules import Rule
from model_ports.errors import UserError

# transformers leaves out of a file what equals its defaults; these are Gemma2Config's.
DEFAULTS: dict[str, Any] = {
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 8192,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
ACT = "gelu_pytorch_tanh"
SLIDING, FULL = "sliding_attention", "full_attention"


def read_gemma2(reader: ConfigReader) -> DecoderConfig:
    """Decoder settings from a gemma2 config; the caller finishes the reader.

    Raises:
        UserError: a missing or contradicting attribute, or one of a value not honoured.
    """
    default_rope_theta(reader)
    for name, value in DEFAULTS.items():
        reader.raw.setdefault(name, value)
    reader.expect("hidden_activation", ACT)
    reader.expect("attention_bias", False)
    reader.expect("tie_word_embeddings", True)
    # How transformers 4 allocated its cache.
    reader.ignore(["cache_implementation"])
    # Not as in Llama, where they follow from the other sizes.
    for name in ("head_dim", "num_key_value_heads"):
        reader.take(name, int)
    cfg = read_llama_like(reader, qkv_bias=False, hidden_act=ACT, tied=True)
    return dataclasses.replace(
        cfg,
        post_norms=True,
        norm_offset=True,
        act="gelu_tanh",
        embed_scale=cfg.dim**0.5,
        attn_scale=reader.take("query_pre_attn_scalar", float) ** -0.5,
        # null turns a cap off.
        attn_softcap=reader.optional("attn_logit_softcapping", float),
        final_softcap=reader.optional("final_logit_softcapping", float),
        windows=_windows(reader, cfg.layers),
    )


def _windows(reader: ConfigReader, layers: int) -> tuple[int, ...]:
    """Window of every layer, 0 for full ones. By default every second layer is full."""
    window = reader.take("sliding_window", int)
    kinds = reader.optional("layer_types", list) or [(SLIDING, FULL)[i % 2] for i in range(layers)]
    if len(kinds) != layers or not set(kinds) <= {SLIDING, FULL}:
        raise UserError(
            f"{reader.where}: layer_types = {kinds!r}; expected {layers} values, each "
            f"{SLIDING!r} or {FULL!r}"
        )
    return tuple(window if kind == SLIDING else 0 for kind in kinds)


def gemma2_rules(cfg: DecoderConfig, *, model: str, head: str) -> list[Rule]:
    """Key table of the decoder, arguments as in ``llama_like_rules``.

    Names shift against Llama: ``post_attention_layernorm`` norms the output of attention.
    """
    layer, ours = f"{model}layers.{{l}}.", "decoder/layers/"
    llama = llama_like_rules(cfg, model=model, head=head)
    shared = [rule for rule in llama if not rule.key.endswith("post_attention_layernorm.weight")]
    norms = {
        "post_attention_layernorm": "post_attn_norm",
        "pre_feedforward_layernorm": "pre_mlp_norm",
        "post_feedforward_layernorm": "post_mlp_norm",
    }
    return shared + [
        Rule(f"{layer}{theirs}.weight", f"{ours}{name}/scale", "vector")
        for theirs, name in norms.items()
    ]
