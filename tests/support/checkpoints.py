"""Tiny Hugging Face folders with random weights, made without transformers or torch."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

BF16 = np.dtype(ml_dtypes.bfloat16)
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 128,
    "rope_theta": 1e4,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "eos_token_id": 1,
}


def llama_config(**changes: Any) -> dict[str, Any]:
    """config.json of a tiny Llama."""
    return {**LLAMA, **changes}


def llama_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor, in the order of published files."""
    d, f, v = (config[k] for k in ("hidden_size", "intermediate_size", "vocab_size"))
    head = config.get("head_dim") or d // config["num_attention_heads"]
    q, kv = head * config["num_attention_heads"], head * config["num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (v, d)}
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        shapes |= {
            f"{at}input_layernorm.weight": (d,),
            f"{at}self_attn.q_proj.weight": (q, d),
            f"{at}self_attn.k_proj.weight": (kv, d),
            f"{at}self_attn.v_proj.weight": (kv, d),
            f"{at}self_attn.o_proj.weight": (d, q),
            f"{at}post_attention_layernorm.weight": (d,),
            f"{at}mlp.gate_proj.weight": (f, d),
            f"{at}mlp.up_proj.weight": (f, d),
            f"{at}mlp.down_proj.weight": (d, f),
        }
    shapes["model.norm.weight"] = (d,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (v, d)
    return shapes


def random_tensors(
    shapes: Mapping[str, tuple[int, ...]], seed: int, dtype: Any = BF16
) -> dict[str, np.ndarray]:
    """Normal values; ``dtype`` may be a function of the name."""
    rng = np.random.default_rng(seed)
    kind = dtype if callable(dtype) and not isinstance(dtype, type) else lambda _: dtype
    return {
        name: rng.normal(size=shape).astype(np.float32).astype(kind(name))
        for name, shape in shapes.items()
    }


def write_folder(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    *,
    shards: int | Sequence[Sequence[str]] = 1,
    tokenizer: bool = True,
) -> Path:
    """config.json, weights in one file or with an index, and a word-level tokenizer.

    Args:
        shards: number of files (names dealt round), or the names of each file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(config), indent=2))
    names = list(tensors)
    groups = [names[i::shards] for i in range(shards)] if isinstance(shards, int) else shards
    groups = [list(group) for group in groups if group]
    if len(groups) == 1:
        save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
    else:
        weight_map = {}
        for i, group in enumerate(groups):
            name = f"model-{i + 1:05d}-of-{len(groups):05d}.safetensors"
            part = {key: tensors[key] for key in group}
            save_file(part, folder / name, metadata={"format": "pt"})
            weight_map |= dict.fromkeys(group, name)
        index = {"metadata": {}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    if tokenizer:
        write_tokenizer(folder, config["vocab_size"])
    return folder


def write_tokenizer(folder: Path, vocab: int) -> None:
    """Words w0, w1, ...; w1 ends an answer."""
    words = {f"w{i}": i for i in range(vocab)}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "w0"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "w1", "pad_token": "w0"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def tiny_llama(folder: Path, *, seed: int = 0, dtype: Any = BF16, shards: Any = 1, **changes: Any):
    """A whole folder; returns its tensors."""
    config = llama_config(**changes)
    tensors = random_tensors(llama_shapes(config), seed, dtype)
    write_folder(folder, config, tensors, shards=shards)
    return tensors


def write_big(folder: Path, config: Mapping[str, Any], *, shard_bytes: int, seed: int = 0) -> None:
    """A large bfloat16 folder, written quickly from one block of noise and never held whole."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(dict(config)))
    shapes = llama_shapes(config)
    groups: list[list[str]] = [[]]
    size = 0
    for name, shape in shapes.items():
        nbytes = 2 * math.prod(shape)
        if groups[-1] and size + nbytes > shard_bytes:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += nbytes
    # Without the exponent's top bit every bfloat16 is finite.
    noise = np.random.default_rng(seed).integers(0, 2**16, 1 << 20, np.uint16) & 0xBFFF
    block = noise.tobytes()
    weight_map = {}
    for i, group in enumerate(groups):
        file_name = f"model-{i + 1:05d}-of-{len(groups):05d}.safetensors"
        header, offset = {}, 0
        for name in group:
            nbytes = 2 * math.prod(shapes[name])
            span = [offset, offset + nbytes]
            header[name] = {"dtype": "BF16", "shape": shapes[name], "data_offsets": span}
            offset += nbytes
        text = json.dumps(header).encode()
        with (folder / file_name).open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for k, name in enumerate(group):
                left, start = 2 * math.prod(shapes[name]), 2 * (k + 1000 * i)
                while left:
                    part = block[start : start + left]
                    file.write(part)
                    left, start = left - len(part), 0
        weight_map |= dict.fromkeys(group, file_name)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def folder_bytes(folder: Path) -> dict[str, bytes]:
    """Relative name -> content of every file below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
