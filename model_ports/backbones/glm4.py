"""GLM-4 language backbone: Llama-like with biases on q, k and v, four norms a layer, and a
rotation of neighbouring dims on the first half of each head."""

import dataclasses

from model_ports.backbones.llama_like import llama_like_rules, read_llama_like
from model_ports.block import DecoderConfig
from model_ports.configs import ConfigReader
from model_ports.convert.rules import Rule


def read_glm4(reader: ConfigReader, *, sections: bool, tied: bool | None = None) -> DecoderConfig:
    """Decoder settings from a glm4 / glm4v_text config.

    Args:
        sections: M-RoPE over three position axes (GLM-4.1V, GLM-4.6V-Flash); else 1-D.
        tied: overrides ``tie_word_embeddings`` where a wrapper config owns it.
    """
    reader.expect("attention_bias", True)
    cfg = read_llama_like(
        reader, qkv_bias=True, sections=sections, pairs="adjacent", partial=True, tied=tied
    )
    return dataclasses.replace(cfg, post_norms=True)


def glm4_rules(cfg: DecoderConfig, *, model: str, head: str) -> list[Rule]:
    """Key table of the decoder, arguments as in ``llama_like_rules``.

    ``post_attention_layernorm`` comes before the MLP, as in Llama; the norms of the outputs of
    attention and MLP are the other two.
    """
    layer, ours = f"{model}layers.{{l}}.", "decoder/layers/"
    return [
        *llama_like_rules(cfg, model=model, head=head, fused_mlp=True),
        Rule(f"{layer}post_self_attn_layernorm.weight", f"{ours}post_attn_norm/scale", "vector"),
        Rule(f"{layer}post_mlp_layernorm.weight", f"{ours}post_mlp_norm/scale", "vector"),
    ]
