"""A tiny GLM-4V checkpoint with a wide random reference, and the reference's inputs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from PIL import Image
from support.parity import load_params, save_tokenizer, saved_tensors, widen
from support.qwen25 import Pair
from transformers import AutoTokenizer, Glm4vConfig, Glm4vForConditionalGeneration
from transformers.models.glm46v.image_processing_pil_glm46v import Glm46VImageProcessorPil

from model_ports.port import abstract_model
from model_ports.vlms.glm4v import PORT

SPECIAL = (
    "<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>",
    "<|observation|>", "<|begin_of_image|>", "<|end_of_image|>", "<|image|>", "<|video|>",
    "<|begin_of_box|>", "<|end_of_box|>", "<think>", "</think>",
)  # fmt: skip
ENDS = ("<|endoftext|>", "<|user|>", "<|observation|>")
# What the published template renders for system and user turns.
TEMPLATE = (
    "[gMASK]<sop>{% set quiet = enable_thinking is defined and not enable_thinking %}"
    "{% for turn in messages %}<|{{ turn.role }}|>\n"
    "{% if turn.content is string %}{{ turn.content }}{% else %}{% for part in turn.content %}"
    "{% if part.type == 'image' %}<|begin_of_image|><|image|><|end_of_image|>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}"
    "{% if quiet and turn.role == 'user' %}/nothink{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n"
    "{% if quiet %}{{ '<think></think>\n' }}{% endif %}{% endif %}"
)
PREPROCESSOR = {
    "size": {"shortest_edge": 12544, "longest_edge": 120000},
    "do_rescale": True,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "image_processor_type": "Glm46VImageProcessor",
    "processor_class": "Glm46VProcessor",
}
TEXT = dict(
    hidden_size=192,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    intermediate_size=112,
    vocab_size=400,
    rms_norm_eps=1e-5,
    max_position_embeddings=4096,
    attention_bias=True,
    rope_parameters={
        "rope_type": "default",
        "rope_theta": 1e4,
        "partial_rotary_factor": 0.5,
        "mrope_section": [2, 3, 3],
    },
)
VISION = dict(
    depth=3,
    hidden_size=48,
    num_heads=3,
    out_hidden_size=192,
    intermediate_size=80,
    image_size=70,
    rms_norm_eps=1e-5,
)


def write_checkpoint(
    folder: Path, *, seed: int = 0, text: dict[str, Any] | None = None
) -> Glm4vForConditionalGeneration:
    """Write config, weights, tokenizer and pixel settings; returns the reference."""
    save_tokenizer(folder, SPECIAL, TEMPLATE, eos="<|endoftext|>", pad="<|endoftext|>")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = {name: tokenizer.convert_tokens_to_ids(name) for name in SPECIAL}
    config = Glm4vConfig(
        text_config=dict(
            TEXT,
            eos_token_id=[ids[name] for name in ENDS],
            pad_token_id=ids["<|endoftext|>"],
            **(text or {}),
        ),
        vision_config=VISION,
        image_token_id=ids["<|image|>"],
        video_token_id=ids["<|video|>"],
        image_start_token_id=ids["<|begin_of_image|>"],
        image_end_token_id=ids["<|end_of_image|>"],
    )
    reference = Glm4vForConditionalGeneration._from_config(config, attn_implementation="eager")
    widen(reference, seed, std=0.15)
    with torch.no_grad():  # a random model must not answer with an image placeholder
        reference.lm_head.weight[[config.image_token_id, config.video_token_id]] = 0
    saved_tensors(reference, folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    return reference


class GlmPair(Pair):
    """The reference and the port with the same weights."""

    PLACEHOLDER: ClassVar[str] = "<|image|>"

    @classmethod
    def make(cls, folder: Path, *, seed: int = 0, text: dict[str, Any] | None = None) -> Self:
        reference = write_checkpoint(folder, seed=seed, text=text)
        config = PORT.read_config(json.loads((folder / "config.json").read_text()))
        graphdef, abstract = abstract_model(PORT, config)
        rules = PORT.layouts(config)["published"]
        params = load_params(abstract, rules, saved_tensors(reference, folder))
        return cls(folder, reference, config, graphdef, params, PORT.processor(folder, config))

    def pixels(self, images: Sequence[Image.Image]) -> dict[str, torch.Tensor]:
        """The reference's own pixel arrays."""
        processor = Glm46VImageProcessorPil(
            **{k: v for k, v in PREPROCESSOR.items() if k != "processor_class"}
        )
        return dict(processor(list(images), return_tensors="pt"))
