"""Qwen3 language backbone: Llama-like without biases, queries and keys normed over the head dim
before the rotation. ``rope_theta`` differs between its users (Qwen3-VL 5e6, InternVL3.5 1e6),
so it is read, never assumed."""

from model_ports.backbones.llama_like import read_llama_like, refuse_windows
from model_ports.block import DecoderConfig
from model_ports.configs import ConfigReader


def read_qwen3(reader: ConfigReader, *, sections: bool, tied: bool | None = None) -> DecoderConfig:
    """Decoder settings from a qwen3 / qwen3_vl_text config; refuses biases and sliding windows.

    Args:
        sections: M-RoPE, interleaved over three position axes (Qwen3-VL); else 1-D.
        tied: overrides ``tie_word_embeddings`` where a wrapper config owns it.
    """
    reader.expect("attention_bias", False)
    refuse_windows(reader)
    # transformers' defaults (head_dim 128, as many key-value heads as heads) are not what every
    # size of the family has; published files name both.
    for name in ("head_dim", "num_key_value_heads"):
        reader.take(name, int)
    return read_llama_like(
        reader, qkv_bias=False, qk_norm=True, sections=sections, interleaved=sections, tied=tied
    )
