"""Tiny InternVL checkpoints: a transformers reference, its files, and the port loaded from them.

Also the same weights as the original repositories keep them.
"""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np
import torch
from PIL import Image
from safetensors.numpy import save_file
from support.parity import load_params, save_tokenizer, saved_tensors, widen
from support.qwen25 import Pair

from model_ports.convert.load import load_model
from model_ports.port import abstract_model
from model_ports.prompt import Prompt
from model_ports.vlms.internvl import PORT, InternVLConfig, InternVLProcessor

SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<img>", "</img>", "<IMG_CONTEXT>",
    "<ref>", "</ref>", "<box>", "</box>",
)  # fmt: skip

# What the -hf repositories' template does: placeholder of transformers, no system turn.
HF_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}{% if m['content'] is string %}"
    "{{ m['content'] }}{% else %}{% for c in m['content'] %}{% if c['type'] == 'image' %}"
    "{{ '<IMG_CONTEXT>\n' }}{% elif c['type'] == 'text' %}{{ c['text'] }}{% endif %}{% endfor %}"
    "{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# What the original repositories' template does: their own placeholder.
HUB_TEMPLATE = HF_TEMPLATE.replace("<IMG_CONTEXT>", "<image>")
# A template of a text model: contents are strings, and it brings its own system turn.
TEXT_TEMPLATE = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}"
    "{% endif %}{% for m in messages %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write_tokenizer(folder: Path, template: str = HF_TEMPLATE) -> dict[str, int]:
    """Write the tokenizer files; returns its vocabulary."""
    save_tokenizer(folder, SPECIAL, template, eos="<|im_end|>", pad="<|endoftext|>")
    vocabulary = json.loads((folder / "tokenizer.json").read_text())
    ids = dict(vocabulary["model"]["vocab"])
    return ids | {t["content"]: t["id"] for t in vocabulary["added_tokens"]}


@dataclasses.dataclass
class Tiny:
    """A reference and the port with the same weights."""

    reference: Any
    tensors: dict[str, np.ndarray]
    folder: Path
    config: InternVLConfig
    graphdef: Any
    params: Any
    processor: InternVLProcessor

    @property
    def projections(self) -> list[torch.nn.Module]:
        """o_proj of every decoder layer."""
        return [layer.self_attn.o_proj for layer in self.reference.model.language_model.layers]


# Language models by ``model_type``: InternVL3, InternVL3.5, and InternVL2.5 as transformers
# knows it. Sizes differ so that a number taken from elsewhere does not fit.
LANGUAGE: dict[str, dict[str, Any]] = {
    "qwen2": {"num_attention_heads": 6, "num_key_value_heads": 2},
    "qwen3": {
        "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 24, "rope_theta": 3e3,
        "rope_scaling": None, "rms_norm_eps": 1e-5,
    },
    "llama": {
        "num_attention_heads": 12, "num_key_value_heads": 3, "head_dim": 8, "rms_norm_eps": 1e-3,
        "intermediate_size": 144,
    },
}  # fmt: skip


def make_tiny(
    folder: Path,
    seed: int,
    *,
    backbone: str = "qwen2",
    tied: bool = False,
    max_tiles: int = 6,
    trained_length: int = 4096,
) -> Tiny:
    """Random wide weights, saved by transformers and read back by the port.

    Tiles of 84 x 84 pixels: 6 x 6 patches, 3 x 3 visual tokens. Dynamic NTK acts beyond
    ``trained_length`` tokens (not with qwen3).
    """
    from transformers import InternVLConfig as HFConfig
    from transformers import InternVLForConditionalGeneration

    folder.mkdir(parents=True, exist_ok=True)
    ids = write_tokenizer(folder)
    config = HFConfig(
        text_config={
            "model_type": backbone, "hidden_size": 96, "intermediate_size": 160,
            "num_hidden_layers": 3,
            "vocab_size": max(ids.values()) + 5, "max_position_embeddings": trained_length,
            "rope_theta": 1e4, "rope_scaling": {"type": "dynamic", "factor": 2.0},
            **LANGUAGE[backbone],
        },
        vision_config={
            "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
            "intermediate_size": 72, "image_size": [84, 84], "attention_bias": True,
            "layer_norm_eps": 1e-3,
        },
        image_token_id=ids["<IMG_CONTEXT>"], image_seq_length=9, tie_word_embeddings=tied,
    )  # fmt: skip
    reference = InternVLForConditionalGeneration._from_config(config, attn_implementation="eager")
    reference = widen(reference, seed)
    with torch.no_grad():
        # cls and positions count as matrices of one row; give the vision side real structure.
        for name, value in reference.named_parameters():
            if name.endswith(("cls_token", "position_embeddings")):
                value.copy_(torch.randn(value.shape, generator=torch.manual_seed(seed)))
        # A random model must not answer with an image placeholder.
        reference.lm_head.weight[config.image_token_id] = 0
    tensors = saved_tensors(reference, folder)
    (folder / "preprocessor_config.json").write_text(
        json.dumps({
            "image_processor_type": "GotOcr2ImageProcessorFast", "crop_to_patches": False,
            "min_patches": 1, "max_patches": max_tiles, "size": {"height": 84, "width": 84},
            "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225],
        })
    )  # fmt: skip
    raw = json.loads((folder / "config.json").read_text())
    read = PORT.settle(PORT.read_config(raw), list(tensors))
    graphdef, abstract = abstract_model(PORT, read)
    params = load_params(abstract, PORT.layouts(read)["hf_old"], tensors)
    return Tiny(
        reference=reference,
        tensors=tensors,
        folder=folder,
        config=read,
        graphdef=graphdef,
        params=jax.tree.map(jax.numpy.asarray, params),
        processor=PORT.processor(folder, read),
    )


# transformers' names -> those of the original repositories, after fusing q, k and v.
_STEM, _NEW_STEM = r"^vision_tower\.embeddings\.", "vision_model.embeddings."
_RENAMES = (
    (rf"{_STEM}cls_token", f"{_NEW_STEM}class_embedding"),
    (rf"{_STEM}position_embeddings", f"{_NEW_STEM}position_embedding"),
    (rf"{_STEM}patch_embeddings\.projection", f"{_NEW_STEM}patch_embedding"),
    (r"^vision_tower\.encoder\.layer\.", "vision_model.encoder.layers."),
    (r"\.attention\.projection_layer\.", ".attn.proj."),
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
    (r"\.lambda_([12])$", r".ls\1"),
    (r"^multi_modal_projector\.layer_norm\.", "mlp1.0."),
    (r"^multi_modal_projector\.linear_1\.", "mlp1.1."),
    (r"^multi_modal_projector\.linear_2\.", "mlp1.3."),
)
# Llama's names -> InternLM2's.
_INTERNLM2 = (
    (r"\.embed_tokens\.", ".tok_embeddings."),
    (r"\.lm_head\.", ".output."),
    (r"\.self_attn\.o_proj\.", ".attention.wo."),
    (r"\.input_layernorm\.", ".attention_norm."),
    (r"\.post_attention_layernorm\.", ".ffn_norm."),
    (r"\.mlp\.gate_proj\.", ".feed_forward.w1."),
    (r"\.mlp\.up_proj\.", ".feed_forward.w3."),
    (r"\.mlp\.down_proj\.", ".feed_forward.w2."),
)


def remote_tensors(
    tensors: Mapping[str, np.ndarray], text: Mapping[str, Any], *, contiguous: bool = False
) -> dict[str, np.ndarray]:
    """transformers' tensors under the names of the original repositories.

    Args:
        text: the text_config; a llama becomes InternLM2.
        contiguous: fuse wqkv the wrong way, [all q; all k; all v].
    """
    internlm2 = text["model_type"] == "llama"

    def renamed(key: str) -> str:
        for pattern, new in (*_RENAMES, *(_INTERNLM2 if internlm2 else ())):
            key = re.sub(pattern, new, key)
        return key

    fused = r"(.*)\.attention\.([qkv])_proj\.(weight|bias)"
    if internlm2:
        fused = r"(.*)\.(?:attention|self_attn)\.([qkv])_proj\.(weight|bias)"
    out = {renamed(k): v for k, v in tensors.items() if not re.fullmatch(fused, k)}
    for key in tensors:
        match = re.fullmatch(fused, key)
        if match is None or match[2] != "q":
            continue
        parts = [tensors[key.replace("q_proj", f"{p}_proj")] for p in "qkv"]
        name = renamed(f"{match[1]}.attn.qkv.{match[3]}")
        if "self_attn" in key:
            name = f"{match[1]}.attention.wqkv.{match[3]}"
            if not contiguous:
                parts = [_per_group(parts, text["num_key_value_heads"])]
        out[name] = np.concatenate(parts)
    return out


def _per_group(parts: list[np.ndarray], groups: int) -> np.ndarray:
    """Rows of q, k and v of each key-value head together, written as a plain loop."""
    rows = []
    for group in range(groups):
        for part in parts:
            size = len(part) // groups
            rows.append(part[group * size : (group + 1) * size])
    return np.concatenate(rows)


def remote_config(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json of the original repositories for one of transformers."""
    vision, text = raw["vision_config"], raw["text_config"]
    rope = text["rope_parameters"]
    llm = {k: text[k] for k in text if k not in {"rope_parameters", "tie_word_embeddings"}}
    scaling = {"type": "dynamic", "factor": 2.0} if rope["rope_type"] == "dynamic" else None
    llm |= {"rope_theta": rope["rope_theta"], "rope_scaling": scaling}
    if llm["model_type"] == "llama":
        gone = {"attention_bias", "mlp_bias", "head_dim"}
        llm = {k: v for k, v in llm.items() if k not in gone}
        llm |= {"model_type": "internlm2", "bias": False, "attn_implementation": "eager"}
    same = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
            "layer_norm_eps", "hidden_act", "norm_type")  # fmt: skip
    return {
        "model_type": "internvl_chat", "downsample_ratio": 0.5, "dynamic_image_size": True,
        "force_image_size": 84, "llm_config": llm, "max_dynamic_patch": 6, "ps_version": "v2",
        "select_layer": -1, "template": "internvl2_5", "use_thumbnail": True,
        "vision_config": {
            "model_type": "intern_vit_6b", "image_size": 84, "patch_size": 14, "qkv_bias": True,
            "qk_normalization": False, **{name: vision[name] for name in same},
        },
    }  # fmt: skip


def write_folder(folder: Path, raw: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> None:
    """config.json, weights and tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(raw))
    save_file(
        {k: np.ascontiguousarray(v) for k, v in tensors.items()}, folder / "model.safetensors"
    )


def published(tiny: Tiny, folder: Path, *, contiguous: bool = False) -> Tiny:
    """The same reference with the port loaded from a folder as the original repositories have.

    Args:
        contiguous: as in ``remote_tensors``.
    """
    raw = json.loads((tiny.folder / "config.json").read_text())
    tensors = remote_tensors(tiny.tensors, raw["text_config"], contiguous=contiguous)
    write_folder(folder, remote_config(raw), tensors)
    model = load_model(folder)
    return dataclasses.replace(
        tiny,
        tensors=tensors,
        folder=folder,
        config=model.config,
        graphdef=model.graphdef,
        params=model.params,
        processor=model.processor,
    )


class InternPair(Pair):
    """The reference and the port with the same weights, as the checks of every port want them."""

    @classmethod
    def make(
        cls, folder: Path, *, seed: int = 0, backbone: str = "qwen2", remote: bool = False
    ) -> Self:
        """
        Args:
            remote: read from files as the original repositories have them.
        """
        tiny = make_tiny(folder / "hf", seed, backbone=backbone)
        if remote:
            tiny = published(tiny, folder / "remote")
        found = {field.name: getattr(tiny, field.name) for field in dataclasses.fields(cls)}
        return cls(**found)

    def inputs(self, prompt: Prompt, images: Sequence[Image.Image]) -> dict[str, torch.Tensor]:
        """Tokens and tiles of one sample; the reference counts its image tokens."""
        inputs = {"input_ids": torch.tensor(prompt.tokens[None].astype(np.int64))}
        if images:
            inputs["pixel_values"] = torch.tensor(prompt.images["tiles"])
        return inputs
