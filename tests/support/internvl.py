"""Tiny InternVL checkpoints: a transformers reference, its files, and the port loaded from them."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
from support.parity import load_params, save_tokenizer, saved_tensors, widen

from model_ports.port import abstract_model
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


def make_tiny(
    folder: Path, seed: int, *, tied: bool = False, max_tiles: int = 6, trained_length: int = 4096
) -> Tiny:
    """Random wide weights, saved by transformers and read back by the port.

    Tiles of 84 x 84 pixels: 6 x 6 patches, 3 x 3 visual tokens. Dynamic NTK acts beyond
    ``trained_length`` tokens.
    """
    from transformers import InternVLConfig as HFConfig
    from transformers import InternVLForConditionalGeneration

    folder.mkdir(parents=True, exist_ok=True)
    ids = write_tokenizer(folder)
    config = HFConfig(
        text_config={
            "model_type": "qwen2", "hidden_size": 96, "intermediate_size": 160,
            "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
            "vocab_size": max(ids.values()) + 5, "max_position_embeddings": trained_length,
            "rope_theta": 1e4, "rope_scaling": {"type": "dynamic", "factor": 2.0},
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
