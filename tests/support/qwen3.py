"""A tiny Qwen3-VL checkpoint with a wide random reference, and the reference's inputs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
from PIL import Image
from support.parity import save_tokenizer, saved_tensors, widen
from support.qwen25 import SPECIAL, Pair
from transformers import AutoTokenizer, Qwen3VLConfig, Qwen3VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from model_ports.vlms.qwen3_vl import PORT

# What the family's published template renders for system and user turns: ChatML, and no system
# turn unless the messages have one.
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}"
    "{% if part.type == 'image' or 'image' in part %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif 'text' in part %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PREPROCESSOR = {
    "size": {"shortest_edge": 4096, "longest_edge": 60000},
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "processor_class": "Qwen3VLProcessor",
}
# The heads are wider than hidden_size / heads, as in the small sizes of the family. With a small
# rope_theta the last frequencies matter too, which belong to the time axis whatever their index.
TEXT = dict(
    hidden_size=96,
    num_hidden_layers=4,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=24,
    intermediate_size=112,
    vocab_size=400,
    rms_norm_eps=1e-6,
    max_position_embeddings=4096,
    rope_parameters={
        "rope_type": "default",
        "rope_theta": 500.0,
        "mrope_interleaved": True,
        "mrope_section": [6, 3, 3],
    },
)
VISION = dict(
    depth=5,
    hidden_size=48,
    intermediate_size=52,
    num_heads=3,
    out_hidden_size=96,
    patch_size=16,
    num_position_embeddings=49,
    deepstack_visual_indexes=[0, 2, 3],
)


def write_checkpoint(
    folder: Path, *, seed: int = 0, text: dict[str, Any] | None = None
) -> Qwen3VLForConditionalGeneration:
    """Write config, weights, tokenizer and pixel settings; returns the reference."""
    save_tokenizer(folder, SPECIAL, TEMPLATE, eos="<|im_end|>", pad="<|endoftext|>")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = {name: tokenizer.convert_tokens_to_ids(name) for name in SPECIAL}
    config = Qwen3VLConfig(
        text_config=dict(
            TEXT,
            bos_token_id=ids["<|endoftext|>"],
            eos_token_id=ids["<|im_end|>"],
            **(text or {}),
        ),
        vision_config=VISION,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=bool((text or {}).get("tie_word_embeddings")),
    )
    reference = Qwen3VLForConditionalGeneration._from_config(config, attn_implementation="eager")
    widen(reference, seed)
    with torch.no_grad():  # a random model must not answer with an image placeholder
        reference.lm_head.weight[[config.image_token_id, config.video_token_id]] = 0
    saved_tensors(reference, folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    return reference


class Qwen3Pair(Pair):
    """The reference and the port with the same weights."""

    @classmethod
    def make(cls, folder: Path, *, seed: int = 0, text: dict[str, Any] | None = None) -> Self:
        return cls.read(PORT, write_checkpoint(folder, seed=seed, text=text), folder)

    def pixels(self, images: Sequence[Image.Image]) -> dict[str, torch.Tensor]:
        """The reference's own pixel arrays."""
        settings = {k: v for k, v in PREPROCESSOR.items() if "processor" not in k}
        return dict(Qwen2VLImageProcessorPil(**settings)(list(images), return_tensors="pt"))
