"""Qwen2 / Qwen2.5 language backbone: Llama-like with biases on q, k and v."""

from model_ports.backbones.llama_like import llama_like_rules, read_llama_like
from model_ports.block import DecoderConfig
from model_ports.configs import ConfigReader

__all__ = ["llama_like_rules", "read_qwen2"]


def read_qwen2(reader: ConfigReader, *, sections: bool, tied: bool | None = None) -> DecoderConfig:
    """Decoder settings from a qwen2 / qwen2_5_vl_text config; refuses sliding windows."""
    reader.expect("use_sliding_window", False, None)
    reader.ignore(["sliding_window", "max_window_layers"])
    layers = reader.take("num_hidden_layers", int)
    reader.expect("layer_types", None, ["full_attention"] * layers)
    return read_llama_like(reader, qkv_bias=True, sections=sections, tied=tied)
