"""A GGUF file of a Llama-architecture model -> a Hugging Face folder, dequantised to float32.

GGUF is llama.cpp's single-file format. This step only undoes its encoding (quantised blocks,
tensor names, the reordered rows of q and k, the tokenizer); the folder it writes is an
ordinary checkpoint that ``vrh convert`` reads. Needs the ``gguf`` package (extra
``[smollm2]``), not torch.

Axis letters: L layers, N query heads, K key-value heads, H head dim, D model dim.
"""

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from model_ports.convert.gguf_tokenizer import write_tokenizer
from model_ports.errors import UserError

# Metadata of the architecture that this step uses; anything else could change the numbers.
_USED = frozenset(
    """block_count context_length embedding_length feed_forward_length attention.head_count
    attention.head_count_kv rope.freq_base attention.layer_norm_rms_epsilon vocab_size
    rope.dimension_count attention.key_length attention.value_length""".split()
)

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert_gguf(source: Path, out: Path, provenance: Mapping[str, Any] | None = None) -> None:
    """Write ``out`` (which must not exist): config, weights, tokenizer and ``source.json``.

    The folder appears under its name only when it is complete.

    Args:
        source: the GGUF file; architecture ``llama``, any quantisation that gguf can undo.
        out: folder to create.
        provenance: stored as ``source.json``.

    Raises:
        UserError: the gguf package is missing, the file cannot be read, or it holds metadata
            or tensors that this step does not know. Nothing is left behind.
    """
    if out.exists():
        raise UserError(f"{out} exists already; choose another folder or remove it")
    reader = _open(source)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    config = read_gguf_config(fields, tied=not _has(reader, "output.weight"))
    shapes = {t.name: tuple(int(n) for n in reversed(t.shape)) for t in reader.tensors}
    _check_tensors(shapes, config)
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.partial-", dir=out.parent))
    try:
        write_tokenizer(fields, partial)
        _write_weights(reader, config, partial / "model.safetensors")
        end = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
        _write_json(partial / "generation_config.json", end)
        _write_json(partial / "source.json", {"gguf": source.name, **(provenance or {})})
        _write_json(partial / "config.json", config)
        partial.chmod(0o755)
        partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def read_gguf_config(fields: Mapping[str, Any], *, tied: bool) -> dict[str, Any]:
    """config.json of a Llama checkpoint from GGUF metadata; refuses unknown attributes."""
    kind = fields.get("general.architecture")
    if kind != "llama":
        raise UserError(f"GGUF: general.architecture is {kind!r}; only 'llama' can be converted")
    own = {
        name.removeprefix("llama."): v for name, v in fields.items() if name.startswith("llama.")
    }
    unknown = sorted(set(own) - _USED)
    if unknown:
        raise UserError(
            f"GGUF: llama.{unknown[0]} = {own[unknown[0]]!r} is not supported (scaled RoPE, "
            "experts and windows would change the numbers)"
        )

    def need(name: str) -> Any:
        if name not in own:
            raise UserError(f"GGUF: the metadata lacks 'llama.{name}'")
        return own[name]

    dim, heads = int(need("embedding_length")), int(need("attention.head_count"))
    head_dim = int(own.get("attention.key_length", dim // heads))
    for name in ("attention.value_length", "rope.dimension_count"):
        if int(own.get(name, head_dim)) != head_dim:
            raise UserError(f"GGUF: llama.{name} = {own[name]}; expected the head dim {head_dim}")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "hidden_size": dim,
        "intermediate_size": int(need("feed_forward_length")),
        "num_hidden_layers": int(need("block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(own.get("attention.head_count_kv", heads)),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": int(need("context_length")),
        "rms_norm_eps": _decimal(need("attention.layer_norm_rms_epsilon")),
        "rope_theta": _decimal(own.get("rope.freq_base", 10000.0)),
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": fields.get("tokenizer.ggml.padding_token_id"),
        "torch_dtype": "float32",
    }


def restore_rows(weight: np.ndarray, heads: int) -> np.ndarray:
    """Undo GGUF's reordering of the rows of q and k: [heads * H, D] -> the same shape.

    llama.cpp rotates neighbouring pairs of rows (2i, 2i + 1) of a head; Hugging Face rotates
    row i with row i + H/2. The file interleaves the two halves; this separates them again.
    """
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows, columns)


def huggingface_name(name: str) -> str | None:
    """The tensor's name in a Llama checkpoint; None if unknown."""
    if name in _TOP:
        return _TOP[name]
    parts = name.split(".")
    known = len(parts) == 4 and parts[0] == "blk" and parts[1].isdigit() and parts[3] == "weight"
    if not known or parts[2] not in _LAYER:
        return None
    return f"model.layers.{int(parts[1])}.{_LAYER[parts[2]]}.weight"


def _open(source: Path) -> Any:
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise UserError(
            "reading a GGUF file needs the gguf package: pip install -e '.[smollm2]'"
        ) from error
    try:
        return GGUFReader(source)
    except (OSError, ValueError, IndexError, KeyError) as error:
        raise UserError(
            f"{source} cannot be read as GGUF ({error}); is it complete? Compare its size and "
            "checksum with the published ones"
        ) from error


def _has(reader: Any, name: str) -> bool:
    return any(t.name == name for t in reader.tensors)


def _expected_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """GGUF tensor names and shapes (as numpy sees them) of a config."""
    dim, mlp, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    q = config["num_attention_heads"] * config["head_dim"]
    kv = config["num_key_value_heads"] * config["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (vocab, dim),
        "output_norm.weight": (dim,),
    }
    if not config["tie_word_embeddings"]:
        shapes["output.weight"] = (vocab, dim)
    layer = {
        "attn_norm": (dim,),
        "ffn_norm": (dim,),
        "attn_q": (q, dim),
        "attn_k": (kv, dim),
        "attn_v": (kv, dim),
        "attn_output": (dim, q),
        "ffn_gate": (mlp, dim),
        "ffn_up": (mlp, dim),
        "ffn_down": (dim, mlp),
    }
    for index in range(config["num_hidden_layers"]):
        shapes |= {f"blk.{index}.{part}.weight": shape for part, shape in layer.items()}
    return shapes


def _check_tensors(found: Mapping[str, tuple[int, ...]], config: Mapping[str, Any]) -> None:
    expected = _expected_shapes(config)
    missing, extra = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    if missing:
        raise UserError(f"GGUF: {len(missing)} tensors are missing, first {missing[0]!r}")
    if extra:
        raise UserError(f"GGUF: {len(extra)} tensors have no place in a Llama, first {extra[0]!r}")
    for name, shape in expected.items():
        if found[name] != shape:
            raise UserError(f"GGUF: {name} has shape {found[name]}; the metadata asks for {shape}")


def _write_weights(reader: Any, config: Mapping[str, Any], path: Path) -> None:
    from gguf import dequantize
    from safetensors.numpy import save_file

    rows = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    tensors = {}
    for tensor in reader.tensors:
        try:
            value = dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            raise UserError(f"GGUF: {tensor.name}: {error}") from error
        value = value.reshape(tuple(int(n) for n in reversed(tensor.shape)))
        part = tensor.name.split(".")[-2]
        if part in rows:
            value = restore_rows(value, rows[part])
        name = huggingface_name(tensor.name)
        if name is None:
            raise UserError(f"GGUF: {tensor.name!r} has no place in a Llama checkpoint")
        tensors[name] = np.ascontiguousarray(value, np.float32)
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(0o644)  # safetensors creates it readable by its owner only


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def _decimal(value: float) -> float:
    """The shortest decimal of a float32 (GGUF stores 1e-5 as 9.99999974737875e-06)."""
    return float(str(np.float32(value)))
