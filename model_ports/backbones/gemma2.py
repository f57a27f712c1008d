"""Gemma 2 language backbone: norms that multiply by 1 + weight, four of them a layer, scaled
embeddings, soft caps on attention and output logits, and a sliding window on some layers."""

from typing import Any

from model_ports.backbones.llama_like import llama_like_rules, read_rope
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
DEFAULT_ROPE_THETA = 10000.0

SLIDING, FULL = "sliding_attention", "full_attention"


def read_gemma2(reader: ConfigReader) -> DecoderConfig:
    """Decoder settings from a gemma2 config; the caller finishes the reader.

    Raises:
        UserError: a missing or contradicting attribute, or one of a value not honoured.
    """
    rope = reader.raw.get("rope_parameters") or {}
    if "rope_theta" not in rope:
        reader.raw.setdefault("rope_theta", DEFAULT_ROPE_THETA)
    for name, value in DEFAULTS.items():
        reader.raw.setdefault(name, value)
    for name in ("hidden_act", "hidden_activation"):
        reader.expect(name, "gelu_pytorch_tanh")
    reader.expect("attention_bias", False)
    reader.expect("tie_word_embeddings", True)
    # How transformers 4 allocated its cache.
    reader.ignore(["cache_implementation"])
    heads = reader.take("num_attention_heads", int)
    kv_heads = reader.take("num_key_value_heads", int)
    layers, dim = reader.take("num_hidden_layers", int), reader.take("hidden_size", int)
    if kv_heads < 1 or heads % kv_heads:
        raise UserError(
            f"{reader.where}: {heads} attention heads are not a multiple of {kv_heads} "
            "key-value heads"
        )
    scalar = _positive(reader, "query_pre_attn_scalar")
    return DecoderConfig(
        vocab=reader.take("vocab_size", int),
        layers=layers,
        dim=dim,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=reader.take("head_dim", int),
        mlp_dim=reader.take("intermediate_size", int),
        norm_eps=reader.take("rms_norm_eps", float),
        rope=read_rope(reader),
        post_norms=True,
        norm_offset=True,
        act="gelu_tanh",
        embed_scale=dim**0.5,
        attn_scale=scalar**-0.5,
        attn_softcap=_cap(reader, "attn_logit_softcapping"),
        final_softcap=_cap(reader, "final_logit_softcapping"),
        windows=_windows(reader, layers),
        tied=True,
    )


def _positive(reader: ConfigReader, name: str) -> float:
    value = reader.take(name, float)
    if value <= 0:
        raise UserError(f"{reader.where}: {name} = {value}; expected a positive number")
    return value


def _cap(reader: ConfigReader, name: str) -> float | None:
    """A soft cap; null turns it off."""
    return None if reader.optional(name, float) is None else _positive(reader, name)


def _windows(reader: ConfigReader, layers: int) -> tuple[int, ...]:
    """Window of every layer, 0 for full ones. By default every second layer is full."""
    window = reader.take("sliding_window", int)
    if window < 1:
        raise UserError(f"{reader.where}: sliding_window = {window}; expected a positive number")
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
