"""Phi-3 and Phi-4 language backbones: Llama's computation with fused projections.

One tensor holds the rows of all query heads, then of all key heads, then of all value heads;
another those of gate and up. They are split when a checkpoint is converted and put together
again on export. Phi-4 rotates whole heads, its small relatives only a leading part of them.
Reference: transformers ``Phi3ForCausalLM``.
"""

from model_ports.backbones.llama_like import llama_like_rules, read_llama_like
from model_ports.block import DecoderConfig
from model_ports.configs import ConfigReader
from model_ports.convert.rules import Rule


def read_phi(reader: ConfigReader, *, tied: bool | None = None) -> DecoderConfig:
    """DecoderConfig of a ``phi3`` config; the caller finishes the reader.

    Args:
        tied: overrides ``tie_word_embeddings`` where a wrapper config owns it.
    """
    reader.expect("attention_bias", False)
    reader.expect("sliding_window", None)
    # Dropout, and the context length before scaling, of which there is none.
    reader.ignore(["embd_pdrop", "resid_pdrop", "original_max_position_embeddings"])
    inner = reader.raw.get("rope_parameters") or reader.raw.get("rope_scaling") or {}
    if "partial_rotary_factor" not in inner:
        reader.raw.setdefault("partial_rotary_factor", 1.0)  # as Phi3Config
    return read_llama_like(reader, qkv_bias=False, partial=True, tied=tied)


def phi_rules(cfg: DecoderConfig, *, model: str, head: str) -> list[Rule]:
    """Key table of the decoder, arguments as in ``llama_like_rules``."""
    rules = llama_like_rules(cfg, model=model, head=head, fused_mlp=True)
    key = f"{model}layers.{{l}}.self_attn.qkv_proj.weight"
    count, first = cfg.heads + 2 * cfg.kv_heads, 0
    for part, span in (("q", cfg.heads), ("k", cfg.kv_heads), ("v", cfg.kv_heads)):
        param = f"decoder/layers/attn/{part}/kernel"
        rules = [rule for rule in rules if rule.param != param]
        rules.append(Rule(key, param, "linear", rows=(first, count), span=span))
        first += span
    return rules
