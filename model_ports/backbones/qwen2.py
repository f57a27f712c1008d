"""Qwen2 / Qwen2.5 language backbone: Llama-like with biases on q, k and v."""

from model_ports.backbones.llama_like import read_llama_like, refuse_windows
from model_ports.block import DecoderConfig
from model_ports.configs import ConfigReader


def read_qwen2(reader: ConfigReader, *, sections: bool, tied: bool | None = None) -> DecoderConfig:
    """Decoder settings from a qwen2 / qwen2_5_vl_text config; refuses sliding windows."""
    refuse_windows(reader)
    return read_llama_like(reader, qkv_bias=True, sections=sections, tied=tied)
