"""A tiny PaliGemma 2 checkpoint with a wide random reference, and the reference's inputs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from PIL import Image
from support.parity import load_params, save_tokenizer, saved_tensors, widen
from support.qwen25 import Pair
from transformers import AutoTokenizer, PaliGemmaConfig, PaliGemmaForConditionalGeneration
from transformers.models.paligemma.processing_paligemma import PaliGemmaProcessor
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from model_ports.port import abstract_model
from model_ports.prompt import Prompt
from model_ports.vlms.paligemma2 import PORT

LOC = tuple(f"<loc{i:04d}>" for i in range(1024))
SPECIAL = ("<pad>", "<eos>", "<bos>", *LOC, "<image>")
SIDE, TOKENS = 56, 16
PREPROCESSOR: dict[str, Any] = {
    "do_convert_rgb": None,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_processor_type": "SiglipImageProcessor",
    "image_seq_length": TOKENS,
    "image_std": [0.5, 0.5, 0.5],
    "processor_class": "PaliGemmaProcessor",
    "resample": 3,
    "rescale_factor": 0.00392156862745098,
    "size": {"height": SIDE, "width": SIDE},
}
# The window is shorter than the prompts; the caps are within the range of the logits.
TEXT = {
    "model_type": "gemma2",
    "hidden_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "intermediate_size": 160,
    "query_pre_attn_scalar": 20,
    "sliding_window": 7,
    "attn_logit_softcapping": 3.0,
    "final_logit_softcapping": 6.0,
    "max_position_embeddings": 512,
}
VISION = {
    "model_type": "siglip_vision_model",
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 72,
    "image_size": SIDE,
    "patch_size": 14,
    "vision_use_head": False,
}


def write_tokenizer(folder: Path) -> Any:
    """Write the tokenizer files; returns the tokenizer."""
    save_tokenizer(folder, SPECIAL, "", eos="<eos>", pad="<pad>")
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"bos_token": "<bos>"}))
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    return AutoTokenizer.from_pretrained(folder)


def write_checkpoint(folder: Path, *, seed: int = 0) -> PaliGemmaForConditionalGeneration:
    """Write config, weights, tokenizer and pixel settings; returns the reference."""
    tokenizer = write_tokenizer(folder)
    image = tokenizer.convert_tokens_to_ids("<image>")
    config = PaliGemmaConfig(
        text_config=TEXT | {"vocab_size": len(tokenizer) + 64},
        vision_config=VISION,
        image_token_index=image,
        projection_dim=TEXT["hidden_size"],
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    reference = PaliGemmaForConditionalGeneration._from_config(config, attn_implementation="eager")
    widen(reference, seed)
    with torch.no_grad():
        for name, value in reference.named_parameters():
            draw = torch.randn(value.shape, generator=torch.manual_seed(seed))
            if name.endswith("position_embedding.weight"):
                value.copy_(draw)
            elif "language_model" in name and name.endswith("input_layernorm.weight"):
                value.sub_(1)  # multiplied as 1 + weight; norms of outputs stay around 2
        # Signs that differ: a tied head otherwise answers the last token once more.
        language = reference.model.language_model
        language.norm.weight.copy_(torch.sign(torch.randn(96, generator=torch.manual_seed(5))) - 1)
        language.norm.weight += 0.1 * torch.linspace(-1, 1, 96)
        language.embed_tokens.weight *= 0.5
        language.embed_tokens.weight[image] = 0  # never answer with a placeholder
        language.embed_tokens.weight[image] = 0  # never answer with an image placeholder
    saved_tensors(reference, folder)
    return reference


class PaliPair(Pair):
    """The reference and the port with the same weights."""

    @classmethod
    def make(cls, folder: Path, *, seed: int = 0, text: dict[str, Any] | None = None) -> Self:
        assert text is None
        reference = write_checkpoint(folder, seed=seed)
        config = PORT.read_config(json.loads((folder / "config.json").read_text()))
        graphdef, abstract = abstract_model(PORT, config)
        params = load_params(
            abstract, PORT.layouts(config)["saved"], saved_tensors(reference, folder)
        )
        return cls(folder, reference, config, graphdef, params, PORT.processor(folder, config))

    def inputs(self, prompt: Prompt, images: Sequence[Image.Image]) -> dict[str, torch.Tensor]:
        """Ids and pixels of transformers' own processor; an answer that was appended follows
        as the causal suffix."""
        if not images:
            tokens = torch.tensor(prompt.tokens[None].astype(np.int64))
            suffix = torch.arange(tokens.shape[1]) >= prompt.prefix
            return {"input_ids": tokens, "token_type_ids": suffix.long()[None]}
        made = official(self.folder)(
            text=prompt.text.replace("<bos>", "").removesuffix("\n"),
            images=[list(images)],
            return_tensors="pt",
        )
        ids = made["input_ids"][0].tolist()
        assert list(prompt.tokens[: len(ids)]) == ids
        assert not made["token_type_ids"].any()
        assert prompt.prefix == len(ids)
        tokens = torch.tensor([[*ids, *map(int, prompt.tokens[len(ids) :])]])
        return {
            "input_ids": tokens,
            "attention_mask": torch.ones_like(tokens),
            "token_type_ids": (torch.arange(tokens.shape[1]) >= len(ids)).long()[None],
            "pixel_values": made["pixel_values"],
        }


def official(folder: Path) -> PaliGemmaProcessor:
    """transformers' processor of a folder, without torchvision."""
    settings = {k: v for k, v in PREPROCESSOR.items() if k != "processor_class"}
    images = SiglipImageProcessorPil(**settings)
    images.image_seq_length = TOKENS
    return PaliGemmaProcessor(images, AutoTokenizer.from_pretrained(folder))


def pixels_of(image: Image.Image, side: int) -> np.ndarray:
    """The reference's pixels of one image, float32 [3, side, side]."""
    processor = SiglipImageProcessorPil(
        size={"height": side, "width": side}, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    pixels: np.ndarray = processor([image], return_tensors="np")["pixel_values"][0]
    return pixels
