"""A tiny Phi-4-Reasoning-Vision checkpoint, its files, and a reference put together from
transformers' Phi-3 and SigLIP 2.

The published code is not run. What it adds to the two classes is few lines: the features of the
second-last block, padding dropped, go through two linear layers and stand in place of ``<image>``
between the embeddings of the text around it.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import torch
from PIL import Image
from safetensors.numpy import save_file
from support.parity import load_params, save_tokenizer, widen
from support.qwen25 import Pair
from transformers import Phi3Config, Phi3ForCausalLM, Siglip2VisionConfig, Siglip2VisionModel
from transformers.models.siglip2.image_processing_pil_siglip2 import Siglip2ImageProcessorPil

from model_ports.port import abstract_model
from model_ports.prompt import Prompt
from model_ports.vlms.phi4_rv import PORT

SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_sep|>", "<|im_end|>", "<think>", "</think>",
    "<|dummy_84|>", "<pad>",
)  # fmt: skip
SYSTEM = "You are Phi, and answer."
# What the published template does: its own system turn, contents as strings, and a line break
# after the separator of the model's turn.
TEMPLATE = (
    f"<|im_start|>system<|im_sep|>{SYSTEM}<|im_end|>\n"
    "{% for message in messages %}\n{% if message['role'] == 'user' %}\n"
    "{{ '<|im_start|>user<|im_sep|>' + message['content'] + '<|im_end|>' }}\n"
    "{% elif message['role'] == 'assistant' %}\n<|im_start|>assistant<|im_sep|>\n"
    "{% generation %}\n{{ message['content'] + '<|im_end|>' }}\n{% endgeneration %}\n"
    "{% endif %}\n{% endfor %}\n"
    "{% if add_generation_prompt %}\n{{ '<|im_start|>assistant<|im_sep|>' }}\n{% endif %}"
)
PATCH, LOW, HIGH = 8, 6, 40
PREPROCESSOR: dict[str, Any] = {
    "auto_map": {"AutoProcessor": "processing_phi4_visionr.Phi4VisionRProcessor"},
    "do_convert_rgb": True,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_processor_type": "Siglip2ImageProcessorNoUpscale",
    "image_std": [0.5, 0.5, 0.5],
    "max_num_patches": HIGH,
    "min_num_patches": LOW,
    "patch_size": PATCH,
    "processor_class": "Phi4VisionRProcessor",
    "rescale_factor": 0.00392156862745098,
    "resample": 2,
}
VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 72,
    "model_type": "siglip2_vision_model",
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "num_patches": 25,
}
CONFIG: dict[str, Any] = {
    "architectures": ["Phi4ForCausalLMV"],
    "attention_bias": False,
    "auto_map": {
        "AutoConfig": "modeling_phi4_visionr.Phi4VisionR",
        "AutoModelForCausalLM": "modeling_phi4_visionr.Phi4ForCausalLMV",
        "AutoProcessor": "processing_phi4_visionr.Phi4VisionRProcessor",
    },
    "hidden_act": "silu",
    "hidden_size": 96,
    "image_aspect_ratio": "square",
    "intermediate_size": 112,
    "max_num_patches": HIGH,
    "max_position_embeddings": 512,
    "min_num_patches": LOW,
    "mm_hidden_size": 32,
    "mm_projector_type": "mlp2x_gelu",
    "mm_vision_tower": f"tiny/siglip2-patch{PATCH}-naflex",
    "model_type": "phi4-siglip",
    "num_attention_heads": 6,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "original_max_position_embeddings": 512,
    "partial_rotary_factor": 1.0,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "rope_theta": 5e5,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "tokenizer_model_max_length": 300,
    "use_mm_proj": True,
    "vision_config": VISION,
}
TEXT_SIZES = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
    "num_hidden_layers", "max_position_embeddings", "rms_norm_eps", "vocab_size",
)  # fmt: skip
TOWER, PROJECTOR = "model.vision_tower.vision_tower.vision_model.", "model.mm_projector."


def phi3_config(raw: dict[str, Any]) -> Phi3Config:
    """The language model of a config.json."""
    rope = {
        "rope_type": "default",
        "rope_theta": raw["rope_theta"],
        "partial_rotary_factor": raw["partial_rotary_factor"],
    }
    ids = {f"{name}_token_id": None for name in ("bos", "eos", "pad")}
    return Phi3Config(**{k: raw[k] for k in TEXT_SIZES}, rope_parameters=rope, **ids)


class Reference(torch.nn.Module):
    """transformers' two towers and what is between them."""

    def __init__(self, raw: dict[str, Any]) -> None:
        super().__init__()
        patch = int(raw["mm_vision_tower"].split("patch")[1].split("-")[0])
        vision = Siglip2VisionConfig(**raw["vision_config"], patch_size=patch)
        self.language = Phi3ForCausalLM._from_config(phi3_config(raw), attn_implementation="eager")
        self.vision = Siglip2VisionModel._from_config(vision, attn_implementation="eager")
        width, dim = vision.hidden_size, raw["hidden_size"]
        self.projector = torch.nn.Sequential(
            torch.nn.Linear(width, dim), torch.nn.GELU(), torch.nn.Linear(dim, dim)
        )
        self.model = SimpleNamespace()  # a place for what other references keep between calls

    def images(self, pixels: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        """Features of each image."""
        out = self.vision(**pixels, output_hidden_states=True).hidden_states[-2]
        masks = pixels["pixel_attention_mask"].bool()
        return [self.projector(one[mask]) for one, mask in zip(out, masks, strict=True)]

    def forward(
        self, chunks: Sequence[torch.Tensor], pixel_values: Any = None, **kwargs: Any
    ) -> Any:
        """``chunks``: token ids before, between and after the images."""
        embed = self.language.get_input_embeddings()
        parts = [embed(chunks[0])]
        if pixel_values is not None:
            names = ("pixel_attention_mask", "spatial_shapes")
            pixels = {"pixel_values": pixel_values, **{n: kwargs.pop(n) for n in names}}
            for image, chunk in zip(self.images(pixels), chunks[1:], strict=True):
                parts += [image, embed(chunk)]
        return self.language(inputs_embeds=torch.cat(parts)[None], **kwargs)

    def tensors(self, tower: str = TOWER) -> dict[str, np.ndarray]:
        """All weights in the names of the published files, or with another tower's prefix."""
        named = {
            **self.language.state_dict(),
            **{tower + name: value for name, value in self.vision.state_dict().items()},
            **{PROJECTOR + name: value for name, value in self.projector.state_dict().items()},
        }
        return {name: np.ascontiguousarray(value.numpy()) for name, value in named.items()}


def pixels_of(
    images: Sequence[Image.Image], patch: int, low: int, high: int, padded: int | None = None
) -> dict[str, torch.Tensor]:
    """The reference's pixels: transformers' processor with the budget of each image, padded."""
    found: dict[str, list[np.ndarray]] = {}
    for image in images:
        whole = max((image.width // patch) * (image.height // patch), 1)
        budget = min(max(whole, low), high)
        processor = Siglip2ImageProcessorPil(patch_size=patch, max_num_patches=budget)
        for name, value in processor([image], return_tensors="np").items():
            array = np.asarray(value)[0]
            if name != "spatial_shapes":
                more = (padded or high) - len(array)
                array = np.pad(array, [(0, more)] + [(0, 0)] * (array.ndim - 1))
            found.setdefault(name, []).append(array)
    return {name: torch.tensor(np.stack(arrays)) for name, arrays in found.items()}


def write_checkpoint(folder: Path, *, seed: int = 0, tower: str = TOWER) -> Reference:
    """Write config, weights, tokenizer, template and pixel settings; returns the reference."""
    save_tokenizer(folder, SPECIAL, "", eos="<|im_end|>", pad="<pad>")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    raw = CONFIG | {
        "vocab_size": vocabulary[-1]["id"] + 5,
        "eos_token_id": next(t["id"] for t in vocabulary if t["content"] == "<|im_end|>"),
    }
    (folder / "config.json").write_text(json.dumps(raw))
    reference = Reference(raw)
    widen(reference, seed)
    with torch.no_grad():  # as large as the embedding of a patch
        table = reference.vision.embeddings.position_embedding.weight
        table.copy_(torch.randn(table.shape, generator=torch.manual_seed(seed)))
    save_file(reference.tensors(tower), folder / "model.safetensors", metadata={"format": "pt"})
    return reference


class PhiPair(Pair):
    """The reference and the port with the same weights."""

    @classmethod
    def make(cls, folder: Path, *, seed: int = 0, text: dict[str, Any] | None = None) -> Self:
        assert text is None
        reference = write_checkpoint(folder, seed=seed)
        config = PORT.read_config(json.loads((folder / "config.json").read_text()))
        graphdef, abstract = abstract_model(PORT, config)
        rules = PORT.layouts(config)["published"]
        params = load_params(abstract, rules, reference.tensors())
        return cls(folder, reference, config, graphdef, params, PORT.processor(folder, config))

    def pixels(self, images: Sequence[Image.Image]) -> dict[str, torch.Tensor]:
        """The reference's own pixel arrays."""
        return pixels_of(images, PATCH, LOW, HIGH)

    def inputs(self, prompt: Prompt, images: Sequence[Image.Image]) -> dict[str, Any]:
        """Inputs of one sample from the rendered text, in chunks around its images; tokens that
        were appended to the prompt (an answer) follow."""
        tokenizer = self.processor.tokenizer
        ids = [tokenizer(chunk)["input_ids"] for chunk in prompt.text.split("<image>")]
        assert len(ids) == len(images) + 1
        pixels = self.pixels(images) if images else {}
        visual = sum(math.prod(shape) for shape in pixels.get("spatial_shapes", torch.zeros(0, 2)))
        ids[-1] += prompt.tokens[sum(map(len, ids)) + int(visual) :].tolist()
        return {"chunks": [torch.tensor(chunk, dtype=torch.long) for chunk in ids], **pixels}

    def projections(self) -> list[torch.nn.Module]:
        """The output projection of every decoder layer."""
        return [layer.self_attn.o_proj for layer in self.reference.language.model.layers]
