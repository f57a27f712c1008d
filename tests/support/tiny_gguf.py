"""A tiny Llama as a GGUF file, written the way llama.cpp's converter writes it.

The permutation and the tokenizer list are written out here on their own, as the reference for
the step that undoes them.
"""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

LAYERS, HEADS, KV_HEADS, HEAD_DIM, MLP = 2, 6, 3, 16, 64
DIM = HEADS * HEAD_DIM
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld", "1 2"]
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def byte_alphabet() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = [b for b in range(256) if b not in keep]
    return [chr(b) for b in keep] + [chr(256 + i) for i in range(len(moved))]


def token_list() -> list[str]:
    return [*SPECIAL, *byte_alphabet(), *("".join(m.split(" ")) for m in MERGES)]


def permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Row h * H + 2 i of the file is row h * H + i of the model, 2 i + 1 is i + H / 2."""
    size = len(weight) // heads
    out = np.empty_like(weight)
    for head in range(heads):
        for i in range(size // 2):
            out[head * size + 2 * i] = weight[head * size + i]
            out[head * size + 2 * i + 1] = weight[head * size + i + size // 2]
    return out


def quantised(weight: np.ndarray, kind: Kind) -> np.ndarray:
    """The values that survive quantisation (float32)."""
    if kind == Kind.F32:
        return weight.astype(np.float32)
    return gguf.dequantize(gguf.quantize(weight, kind), kind)


def make_weights(seed: int, vocab: int, *, tied: bool) -> dict[str, np.ndarray]:
    """Llama tensors by Hugging Face name."""
    rng = np.random.default_rng(seed)
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens": (vocab, DIM),
        "model.norm": (DIM,),
    }
    if not tied:
        shapes["lm_head"] = (vocab, DIM)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        shapes |= {
            f"{at}input_layernorm": (DIM,),
            f"{at}post_attention_layernorm": (DIM,),
            f"{at}self_attn.q_proj": (q, DIM),
            f"{at}self_attn.k_proj": (kv, DIM),
            f"{at}self_attn.v_proj": (kv, DIM),
            f"{at}self_attn.o_proj": (DIM, q),
            f"{at}mlp.gate_proj": (MLP, DIM),
            f"{at}mlp.up_proj": (MLP, DIM),
            f"{at}mlp.down_proj": (DIM, MLP),
        }
    return {
        f"{name}.weight": rng.normal(0, 0.25, shape).astype(np.float32)
        + (1 if len(shape) == 1 else 0)
        for name, shape in shapes.items()
    }


def write_gguf(
    path: Path,
    weights: dict[str, np.ndarray],
    *,
    matrix: Kind = Kind.Q4_1,
    embedding: Kind = Kind.Q8_0,
    metadata: dict[str, Any] | None = None,
    extra: dict[str, np.ndarray] | None = None,
    pre: str = "smollm",
) -> dict[str, np.ndarray]:
    """Write the file; returns the tensors that a correct conversion gives back."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(DIM)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(1000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HEAD_DIM)
    tokens = token_list()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    for name, value in (metadata or {}).items():
        if isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_float32(name, value)
    expected = {}
    for name, weight in weights.items():
        stem = name.removesuffix(".weight")
        kind = Kind.F32 if weight.ndim == 1 else embedding if "layers" not in stem else matrix
        top = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
        short = top.get(stem)
        stored = weight
        if short is None:
            _, _, layer, part = stem.split(".", 3)
            short = f"blk.{layer}.{_NAMES[part]}"
            if part in ("self_attn.q_proj", "self_attn.k_proj"):
                stored = permuted(weight, HEADS if "q_proj" in part else KV_HEADS)
        data = stored if kind == Kind.F32 else gguf.quantize(stored, kind)
        writer.add_tensor(f"{short}.weight", data, raw_dtype=kind)
        # Rows are quantised one by one, so the order of rows does not matter.
        expected[name] = quantised(weight, kind)
    for name, weight in (extra or {}).items():
        writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected
