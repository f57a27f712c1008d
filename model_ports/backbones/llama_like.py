"""Config pieces and key tables that language models share, most of them with Llama's names."""

from typing import Any

from model_ports.block import DecoderConfig
from model_ports.configs import ConfigReader
from model_ports.convert.rules import Rule
from model_ports.errors import UserError
from model_ports.nn.rope import Pairs, Rope

# Llama 1's, and the default of transformers' configuration classes.
ROPE_THETA = 10000.0


def default_rope_theta(reader: ConfigReader) -> None:
    """ROPE_THETA where a config names none, for architectures whose files may leave it out."""
    if "rope_theta" not in (reader.raw.get("rope_parameters") or {}):
        reader.raw.setdefault("rope_theta", ROPE_THETA)


def refuse_windows(reader: ConfigReader) -> None:
    """Qwen's attributes of sliding windows, which published files name and leave off."""
    reader.expect("use_sliding_window", False, None)
    reader.ignore(["sliding_window", "max_window_layers"])
    layers = reader.take("num_hidden_layers", int)
    reader.expect("layer_types", None, ["full_attention"] * layers)


def read_rope(
    reader: ConfigReader,
    *,
    sections: bool = False,
    interleaved: bool = False,
    pairs: Pairs = "halves",
    partial_of: int | None = None,
) -> Rope:
    """Rotary settings from ``rope_theta``/``rope_scaling`` (published) or ``rope_parameters``
    (transformers 5), with the rope types default, mrope and dynamic.

    Args:
        sections: M-RoPE with three position axes.
        interleaved: how the model's code deals frequencies to the axes; a config may only
            repeat it (``mrope_interleaved``).
        pairs: as in Rope.
        partial_of: the head dim, if only ``partial_rotary_factor`` of it is rotated.
    """
    params: dict[str, Any] = {}
    for name in ("rope_scaling", "rope_parameters"):
        params |= reader.optional(name, dict) or {}
    inner = ConfigReader(params, f"{reader.where}: rope settings")
    outer_theta, inner_theta = (r.optional("rope_theta", float) for r in (reader, inner))
    theta = outer_theta or inner_theta
    if theta is None:
        raise UserError(f"{reader.where} lacks 'rope_theta', which this model needs")
    if inner_theta not in (None, theta):
        raise UserError(
            f"{reader.where}: rope_theta is {theta} in one place and {inner_theta} in another"
        )
    kind = inner.take("rope_type", str, None) or inner.take("type", str, "default")
    inner.expect("type", "default", "mrope", "dynamic")
    split = inner.optional("mrope_section", list)
    inner.expect("mrope_interleaved", interleaved)
    dim = None if partial_of is None else _rotated_dims(reader, inner, partial_of)
    factor = inner.optional("factor", float)
    inner.ignore(["original_max_position_embeddings"] if kind == "dynamic" else [])
    inner.finish()
    allowed = ("default", "mrope") if sections else ("default", "dynamic")
    if kind not in allowed:
        raise UserError(
            f"{reader.where}: rope type {kind!r} is not supported; this port honours {allowed}"
        )
    if sections != (split is not None):
        raise UserError(
            f"{reader.where}: mrope_section = {split!r}; this port "
            + ("needs three section lengths" if sections else "has one position axis")
        )
    if (kind == "dynamic") != (factor is not None):
        raise UserError(
            f"{reader.where}: rope type {kind!r} with factor {factor!r}; dynamic scaling needs a "
            "factor and no other type of this port has one"
        )
    return Rope(
        theta=theta,
        sections=tuple(split) if split else None,
        interleaved=interleaved,
        pairs=pairs,
        dim=dim,
        dynamic_factor=factor,
        max_positions=reader.take("max_position_embeddings", int),
    )


def _rotated_dims(outer: ConfigReader, inner: ConfigReader, head_dim: int) -> int:
    """Rotated head dims from ``partial_rotary_factor``, which files keep in either place.

    Without it transformers rotates all dims; no published file means that.
    """
    found = [r.optional("partial_rotary_factor", float) for r in (outer, inner)]
    stated = {value for value in found if value is not None}
    if len(stated) != 1:
        raise UserError(
            f"{outer.where}: partial_rotary_factor is {sorted(stated) or 'missing'}; "
            "expected one value, in the config or in its rope settings"
        )
    return int(head_dim * stated.pop())


def read_llama_like(
    reader: ConfigReader,
    *,
    qkv_bias: bool,
    qk_norm: bool = False,
    sections: bool = False,
    interleaved: bool = False,
    pairs: Pairs = "halves",
    partial: bool = False,
    hidden_act: str = "silu",
    tied: bool | None = None,
) -> DecoderConfig:
    """DecoderConfig from Llama-style attribute names; the caller finishes the reader.

    Args:
        qkv_bias, qk_norm: as in DecoderConfig.
        sections, interleaved, pairs: as in ``read_rope``.
        partial: only the leading ``partial_rotary_factor`` of the head dims is rotated.
        hidden_act: the one activation honoured, by its name in a config.
        tied: overrides ``tie_word_embeddings`` where a wrapper config owns it.
    """
    heads = reader.take("num_attention_heads", int)
    dim = reader.take("hidden_size", int)
    own_tied = reader.take("tie_word_embeddings", bool, False)
    head_dim = reader.optional("head_dim", int) or dim // heads
    reader.expect("hidden_act", hidden_act)
    cfg = DecoderConfig(
        vocab=reader.take("vocab_size", int),
        layers=reader.take("num_hidden_layers", int),
        dim=dim,
        heads=heads,
        kv_heads=reader.take("num_key_value_heads", int, heads),
        head_dim=head_dim,
        mlp_dim=reader.take("intermediate_size", int),
        norm_eps=reader.take("rms_norm_eps", float),
        rope=read_rope(
            reader,
            sections=sections,
            interleaved=interleaved,
            pairs=pairs,
            partial_of=head_dim if partial else None,
        ),
        qkv_bias=qkv_bias,
        qk_norm=qk_norm,
        tied=own_tied if tied is None else tied,
    )
    if not reader.raw.get("head_dim") and dim % heads:
        raise UserError(f"{reader.where}: hidden_size {dim} is not a multiple of {heads} heads")
    if cfg.heads % cfg.kv_heads:
        raise UserError(
            f"{reader.where}: {cfg.heads} attention heads are not a multiple of "
            f"{cfg.kv_heads} key-value heads"
        )
    return cfg


def outer_rules(
    cfg: DecoderConfig,
    *,
    model: str,
    head: str,
    embed: str = "embed_tokens",
    attention: str = "self_attn",
) -> list[Rule]:
    """Key table of what a decoder has around its layers.

    Args:
        model: prefix of embeddings, layers and final norm, e.g. ``model.``.
        head: full name of the output head's weight, e.g. ``lm_head.weight``.
        embed: name of the embeddings.
        attention: name of a layer's attention.
    """
    return [
        Rule(f"{model}{embed}.weight", "decoder/embed/embedding", "vector"),
        Rule(f"{model}norm.weight", "decoder/final_norm/scale", "vector"),
        Rule(head, "decoder/embed/embedding", "vector", use="copy")
        if cfg.tied
        else Rule(head, "decoder/lm_head/kernel", "linear"),
        # Older files carry the rotary frequencies, which follow from the config.
        Rule(f"{model}layers.{{l}}.{attention}.rotary_emb.inv_freq", "", "vector", use="skip"),
    ]


def llama_like_rules(
    cfg: DecoderConfig, *, model: str, head: str, fused_mlp: bool = False
) -> list[Rule]:
    """Key table of the decoder.

    Args:
        model, head: as in ``outer_rules``.
        fused_mlp: gate and up are one tensor, ``gate_up_proj``, gate first.
    """
    layer, ours = f"{model}layers.{{l}}.", "decoder/layers/"
    rules = [
        *outer_rules(cfg, model=model, head=head),
        Rule(f"{layer}input_layernorm.weight", f"{ours}pre_attn_norm/scale", "vector"),
        Rule(f"{layer}post_attention_layernorm.weight", f"{ours}pre_mlp_norm/scale", "vector"),
    ]
    for part in "qkvo":
        key = f"{layer}self_attn.{part}_proj"
        rules.append(Rule(f"{key}.weight", f"{ours}attn/{part}/kernel", "linear"))
        if cfg.qkv_bias and part != "o":
            rules.append(Rule(f"{key}.bias", f"{ours}attn/{part}/bias", "vector"))
    if cfg.qk_norm:
        rules += [
            Rule(f"{layer}self_attn.{norm}.weight", f"{ours}attn/{norm}/scale", "vector")
            for norm in ("q_norm", "k_norm")
        ]
    rules.append(Rule(f"{layer}mlp.down_proj.weight", f"{ours}mlp/down/kernel", "linear"))
    for index, part in enumerate(("gate", "up")):
        name, rows = ("gate_up", (index, 2)) if fused_mlp else (part, None)
        key = f"{layer}mlp.{name}_proj.weight"
        rules.append(Rule(key, f"{ours}mlp/{part}/kernel", "linear", rows))
    return rules
