"""Tiny LLaVA-NeXT checkpoints: a transformers reference, its files, and the port of them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from PIL import Image
from support.parity import load_params, save_tokenizer, saved_tensors, widen
from support.qwen25 import Pair
from transformers import LlavaNextConfig, LlavaNextForConditionalGeneration
from transformers.models.llava_next.image_processing_pil_llava_next import (
    LlavaNextImageProcessorPil,
)

from model_ports.images.resize import CLIP_MEAN, CLIP_STD
from model_ports.port import abstract_model
from model_ports.prompt import Prompt
from model_ports.vlms.llava_next import PORT

BEGIN, EOT, IMAGE = "<|begin_of_text|>", "<|eot_id|>", "<image>"
LLAMA3 = (BEGIN, "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", EOT)
SPECIAL = (*LLAMA3, IMAGE, "<pad>")
SIDE = 56
PINPOINTS = [[56, 112], [112, 56], [112, 112], [168, 56], [56, 168]]

# What the -hf repositories' template renders: no begin-of-text token, images first in their turn.
HF_TEMPLATE = (
    "{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' }}"
    "{% for c in m.content | selectattr('type', 'equalto', 'image') %}{{ '<image>' }}{% endfor %}"
    "{% for c in m.content | selectattr('type', 'equalto', 'text') %}"
    "{{ '\n' + c.text }}{% endfor %}"
    "{{ '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
# Llama 3's own: contents are strings, and it brings the begin-of-text token.
LLAMA3_TEMPLATE = (
    "{% for m in messages %}{% if loop.first %}{{ bos_token }}{% endif %}"
    "{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' }}"
    "{{ m['content'] | trim + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)


def write_tokenizer(
    folder: Path, template: str = HF_TEMPLATE, special: Sequence[str] = SPECIAL
) -> dict[str, int]:
    """A tokenizer that puts the begin-of-text token first, as Llama 3's does; its vocabulary."""
    from tokenizers import Tokenizer, processors

    folder.mkdir(parents=True, exist_ok=True)
    save_tokenizer(folder, special, template, eos=EOT, pad=special[-1])
    path = str(folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, tokenizer.token_to_id(BEGIN))]
    )
    tokenizer.save(path)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"bos_token": BEGIN}))
    return {token: tokenizer.token_to_id(token) for token in special}


def image_processor(side: int = SIDE, pinpoints: Any = PINPOINTS) -> LlavaNextImageProcessorPil:
    """The reference's image processor."""
    return LlavaNextImageProcessorPil(
        size={"shortest_edge": side},
        crop_size={"height": side, "width": side},
        image_grid_pinpoints=[list(pair) for pair in pinpoints],
    )


def preprocessor_json(side: int = SIDE, pinpoints: Any = PINPOINTS) -> dict[str, Any]:
    """preprocessor_config.json as the -hf repositories have it."""
    return {
        "image_processor_type": "LlavaNextImageProcessor", "aspect_ratio_setting": "anyres",
        "size": {"shortest_edge": side}, "crop_size": {"height": side, "width": side},
        "image_grid_pinpoints": pinpoints, "image_mean": list(CLIP_MEAN),
        "image_std": list(CLIP_STD), "resample": 3, "rescale_factor": 1 / 255,
        "do_center_crop": True, "do_convert_rgb": True, "do_normalize": True, "do_rescale": True,
        "do_resize": True, "processor_class": "LlavaNextProcessor",
    }  # fmt: skip


def text_config(vocab: int) -> dict[str, Any]:
    """A Llama-3-like text config."""
    return {
        "model_type": "llama", "hidden_size": 96, "intermediate_size": 160,
        "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
        "vocab_size": vocab, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
        "rope_theta": 5e5,
    }  # fmt: skip


def write_checkpoint(
    folder: Path, *, seed: int = 0, tied: bool = False
) -> LlavaNextForConditionalGeneration:
    """Write config, weights, tokenizer and image settings; returns the reference."""
    ids = write_tokenizer(folder)
    config = LlavaNextConfig(
        text_config=text_config(max(ids.values()) + 6),
        vision_config={
            "model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 72,
            "num_hidden_layers": 4, "num_attention_heads": 4, "image_size": SIDE,
            "patch_size": 14, "layer_norm_eps": 1e-5,
        },
        image_token_index=ids[IMAGE], image_grid_pinpoints=PINPOINTS, image_seq_length=16,
        tie_word_embeddings=tied,
    )  # fmt: skip
    reference = LlavaNextForConditionalGeneration._from_config(config, attn_implementation="eager")
    widen(reference, seed)
    with torch.no_grad():  # a random model must not answer with an image placeholder
        reference.lm_head.weight[ids[IMAGE]] = 0
    saved_tensors(reference, folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor_json()))
    return reference


class LlavaPair(Pair):
    """The reference and the port with the same weights."""

    @classmethod
    def make(cls, folder: Path, *, seed: int = 0, tied: bool = False) -> Self:
        reference = write_checkpoint(folder, seed=seed, tied=tied)
        config = PORT.read_config(json.loads((folder / "config.json").read_text()))
        graphdef, abstract = abstract_model(PORT, config)
        rules = PORT.layouts(config)["saved"]
        params = load_params(abstract, rules, saved_tensors(reference, folder))
        return cls(folder, reference, config, graphdef, params, PORT.processor(folder, config))

    def pixels(self, images: Sequence[Image.Image]) -> dict[str, torch.Tensor]:
        """The reference's own pixel arrays."""
        return dict(image_processor()(list(images), return_tensors="pt"))

    def inputs(self, prompt: Prompt, images: Sequence[Image.Image]) -> dict[str, torch.Tensor]:
        """Inputs of one sample; the reference refuses a wrong number of image tokens."""
        tokens = torch.tensor(prompt.tokens[None].astype(np.int64))
        pixels = self.pixels(images) if images else {}
        return dict(input_ids=tokens, attention_mask=torch.ones_like(tokens), **pixels)
