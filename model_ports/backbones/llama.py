"""Llama-architecture text models (Llama 1-3.0, SmolLM2, and others of the same shape).

What it is: pre-norm decoder, RMSNorm, grouped-query attention without biases, plain 1-D RoPE
(halves rotated), SwiGLU, tied or separate output head. It is used for text retrieval heads:
the key set of a tap is a span of prompt tokens (``TextProcessor.token_slots``).

Reads: published config.json (``rope_theta``/``rope_scaling``) and transformers 5
(``rope_parameters``). Refuses by name what would change the numbers and is not built: scaled
RoPE (llama3, linear, yarn, ...), interleaved RoPE, attention or MLP biases, a
``pretraining_tp`` other than 1 (it changes the order of sums), quantised weights.

Files: one layout, ``model.layers.{l}.self_attn.q_proj.weight`` and so on; with tied
embeddings there is no ``lm_head.weight``.

Prompts: the checkpoint's chat template if it has one, else plain completion.

Reference: transformers ``LlamaForCausalLM`` (eager, float32); see
tests/model_ports/backbones/test_llama.py for the tolerances.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from flax import nnx

from model_ports.backbones.llama_like import default_rope_theta, llama_like_rules, read_llama_like
from model_ports.block import DecoderConfig
from model_ports.configs import ConfigReader
from model_ports.convert.rules import Rule
from model_ports.decoder import Decoder
from model_ports.errors import UserError
from model_ports.port import Port
from model_ports.text import TextProcessor
from model_ports.vlm import VLM

# What ``LlamaConfig`` assumes. transformers 4 saved nested configs without these values.
DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
}


@dataclasses.dataclass(frozen=True)
class LlamaConfig:
    """A text model is its decoder."""

    decoder: DecoderConfig


def read_config(raw: Mapping[str, Any]) -> LlamaConfig:
    """Strict reader of a Llama config.json."""
    reader = ConfigReader(raw)
    decoder = read_llama(reader)
    reader.finish()
    return LlamaConfig(decoder)


def read_llama(reader: ConfigReader, *, tied: bool | None = None) -> DecoderConfig:
    """DecoderConfig of a ``llama`` config; the caller finishes the reader.

    Args:
        tied: overrides ``tie_word_embeddings`` where a wrapper config owns it.
    """
    default_rope_theta(reader)  # Llama 1 and 2 as published name none
    reader.expect("attention_bias", False)
    reader.expect("mlp_bias", False)
    reader.expect("pretraining_tp", 1)
    reader.expect("rope_interleaved", False)
    reader.ignore(["is_llama_config", "transformers.js_config"])
    return read_llama_like(reader, qkv_bias=False, tied=tied)


def read_nested_llama(
    outer: ConfigReader, name: str, *, tied: bool, copied: bool = False
) -> DecoderConfig:
    """DecoderConfig of the config ``name`` inside another; what it leaves out is DEFAULTS.

    Args:
        tied: whether the wrapper ties the output head.
        copied: the outer config repeats attributes of the inner one. They are read too, and
            must mean the same; those that ``outer`` has seen already are left alone.
    """
    given = outer.sub(name)
    reader = ConfigReader({**DEFAULTS, **given.raw}, given.where)
    reader.expect("model_type", "llama")
    reader.expect("tie_word_embeddings", False, tied)
    decoder = read_llama(reader, tied=tied)
    reader.finish()
    for attribute in sorted((reader.seen & set(outer.raw)) - outer.seen - {"model_type"}):
        if not copied:
            break
        value = outer.raw[attribute]
        again = ConfigReader({**reader.raw, attribute: value}, outer.where)
        if read_llama(again, tied=tied) != decoder:
            raise UserError(
                f"{outer.where}: {attribute} = {value!r}, but {name} means another value; they "
                "must agree"
            )
        outer.ignore([attribute])
    return decoder


def build(config: LlamaConfig, rngs: nnx.Rngs, dtype: jnp.dtype) -> VLM:
    """The model; text models use the VLM class without a vision side."""
    return VLM(Decoder(config.decoder, rngs=rngs, dtype=dtype))


def layouts(config: LlamaConfig) -> Mapping[str, Sequence[Rule]]:
    """The one on-disk layout."""
    return {"llama": llama_like_rules(config.decoder, model="model.", head="lm_head.weight")}


def processor(folder: Path, config: LlamaConfig) -> TextProcessor:
    """Tokenizer and template of a checkpoint folder."""
    return TextProcessor.load(folder, config.decoder.vocab)


PORT = Port(
    family="llama",
    model_types=("llama",),
    read_config=read_config,
    build=build,
    layouts=layouts,
    processor=processor,
    box=None,
    names={"smollm2-135m": ("HuggingFaceTB/SmolLM2-135M-Instruct",)},
)
