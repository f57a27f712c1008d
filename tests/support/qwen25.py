"""A tiny Qwen2.5-VL checkpoint with a wide random reference, and the reference's inputs."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from PIL import Image
from support.parity import load_params, save_tokenizer, saved_tensors, widen
from transformers import AutoTokenizer, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from model_ports.port import Port, abstract_model
from model_ports.prompt import Prompt
from model_ports.vlms.qwen2_5_vl import PORT

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
# ChatML with the default system turn, as the family's published template renders it.
TEMPLATE = (
    "{% for message in messages %}"
    "{% if loop.first and message.role != 'system' %}"
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PREPROCESSOR = {
    "min_pixels": 3136,
    "max_pixels": 60000,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen2_5_VLProcessor",
}
TEXT = dict(
    hidden_size=96,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    intermediate_size=112,
    vocab_size=400,
    rms_norm_eps=1e-6,
    max_position_embeddings=4096,
    rope_parameters={"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]},
)
VISION = dict(
    depth=4,
    hidden_size=32,
    intermediate_size=44,
    num_heads=2,
    out_hidden_size=96,
    window_size=56,
    fullatt_block_indexes=[1, 3],
)


def write_checkpoint(
    folder: Path, *, seed: int = 0, text: dict[str, Any] | None = None
) -> Qwen2_5_VLForConditionalGeneration:
    """Write config, weights, tokenizer and pixel settings; returns the reference."""
    save_tokenizer(folder, SPECIAL, TEMPLATE, eos="<|im_end|>", pad="<|endoftext|>")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = {name: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in ("image_pad", "im_end")}
    config = Qwen2_5_VLConfig(
        text_config=dict(
            TEXT,
            bos_token_id=tokenizer.convert_tokens_to_ids("<|endoftext|>"),
            eos_token_id=ids["im_end"],
            **(text or {}),
        ),
        vision_config=VISION,
        image_token_id=ids["image_pad"],
        video_token_id=tokenizer.convert_tokens_to_ids("<|video_pad|>"),
        vision_start_token_id=tokenizer.convert_tokens_to_ids("<|vision_start|>"),
        vision_end_token_id=tokenizer.convert_tokens_to_ids("<|vision_end|>"),
    )
    reference = Qwen2_5_VLForConditionalGeneration._from_config(config, attn_implementation="eager")
    widen(reference, seed, std=0.15)
    with torch.no_grad():  # a random model must not answer with an image placeholder
        reference.lm_head.weight[[config.image_token_id, config.video_token_id]] = 0
    saved_tensors(reference, folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    return reference


@dataclasses.dataclass
class Pair:
    """The reference and the port with the same weights."""

    PLACEHOLDER: ClassVar[str] = "<|image_pad|>"

    folder: Path
    reference: Any
    config: Any
    graphdef: Any
    params: dict[str, Any]
    processor: Any

    @classmethod
    def make(cls, folder: Path, *, seed: int = 0, text: dict[str, Any] | None = None) -> Self:
        return cls.read(PORT, write_checkpoint(folder, seed=seed, text=text), folder)

    @classmethod
    def read(cls, port: Port, reference: Any, folder: Path) -> Self:
        """The port's side of a reference whose checkpoint is in ``folder``."""
        config = port.read_config(json.loads((folder / "config.json").read_text()))
        graphdef, abstract = abstract_model(port, config)
        rules = port.layouts(config)["published"]
        params = load_params(abstract, rules, saved_tensors(reference, folder))
        return cls(folder, reference, config, graphdef, params, port.processor(folder, config))

    def pixels(self, images: Sequence[Image.Image]) -> dict[str, torch.Tensor]:
        """The reference's own pixel arrays."""
        processor = Qwen2VLImageProcessorPil(
            **{k: v for k, v in PREPROCESSOR.items() if k != "processor_class"}
        )
        return dict(processor(list(images), return_tensors="pt"))

    def inputs(self, prompt: Prompt, images: Sequence[Image.Image]) -> dict[str, torch.Tensor]:
        """Inputs of one sample, made the reference's way from the rendered text.

        Tokens that were appended to the prompt (an answer) follow.
        """
        pixels = self.pixels(images) if images else {}
        tokenizer, text = self.processor.tokenizer, prompt.text
        for grid in pixels.get("image_grid_thw", ()):
            text = text.replace(self.PLACEHOLDER, "<|hole|>" * (int(grid.prod()) // 4), 1)
        ids = tokenizer(text.replace("<|hole|>", self.PLACEHOLDER))["input_ids"]
        assert list(prompt.tokens[: len(ids)]) == ids
        tokens = torch.tensor([[*ids, *map(int, prompt.tokens[len(ids) :])]])
        kinds = (tokens == self.config.image_token_id).int()
        return dict(
            input_ids=tokens,
            attention_mask=torch.ones_like(tokens),
            mm_token_type_ids=kinds,
            **pixels,
        )

    @torch.no_grad()
    def forward(self, prompt: Prompt, images: Sequence[Image.Image], **kwargs: Any) -> Any:
        """The reference on one sample, without cached state of earlier calls."""
        self.reference.model.rope_deltas = None
        return self.reference(**self.inputs(prompt, images), use_cache=False, **kwargs)

    @torch.no_grad()
    def attentions(self, prompt: Prompt, images: Sequence[Image.Image]) -> np.ndarray:
        """Eager attention [L, N, T, T] of the reference in double precision: in single, its
        own rounding is as large as the tolerance for ours."""
        inputs = self.inputs(prompt, images)
        inputs["pixel_values"] = inputs["pixel_values"].double()
        self.reference.model.rope_deltas = None
        self.reference.double()
        try:
            out = self.reference(**inputs, use_cache=False, output_attentions=True)
        finally:
            self.reference.float()
        return np.stack([layer[0].numpy() for layer in out.attentions])

    def greedy(self, prompt: Prompt, images: Sequence[Image.Image], steps: int) -> list[int]:
        """Greedy tokens of the reference by full re-forward, without stopping."""
        tokens: list[int] = []
        for _ in range(steps):
            logits = self.forward(prompt.extend(tokens), images).logits
            tokens.append(int(logits[0, -1].argmax()))
        return tokens

    def projections(self) -> list[torch.nn.Module]:
        """The output projection of every decoder layer."""
        return [layer.self_attn.o_proj for layer in self.reference.model.language_model.layers]
