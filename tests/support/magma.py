"""Tiny Magma checkpoints: a reference assembled from transformers' parts, its files, the port.

transformers has no class for Magma. The reference is its ConvNextModel with every epsilon at 1e-5
and without the pooled norm, its LlamaForCausalLM, and a few lines in between that follow the
published code: projector, rows, separators, and one image token replaced by all of them.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from PIL import Image
from safetensors.numpy import save_file
from support.llava import IMAGE, LLAMA3, LLAMA3_TEMPLATE, text_config, write_tokenizer
from support.parity import load_params, widen
from support.qwen25 import Pair
from transformers import ConvNextConfig, ConvNextModel, LlamaConfig, LlamaForCausalLM

from model_ports.images.resize import CLIP_MEAN, CLIP_STD
from model_ports.port import abstract_model
from model_ports.prompt import Prompt
from model_ports.vlms.magma import PORT, config

SPECIAL = (*LLAMA3, "<pad>", IMAGE, "<image_start>", "<image_end>", "<action>")
SIDE, DIMS, DEPTHS = 64, (8, 16, 24, 32), (1, 2, 3, 1)
TINY = config.ConvNextConfig(dims=DIMS, depths=DEPTHS)

# transformers' names of the trunk -> timm's.
TRUNK = (
    (r"^embeddings\.patch_embeddings", "stem.0"),
    (r"^embeddings\.layernorm", "stem.1"),
    (r"^encoder\.", ""),
    (r"downsampling_layer\.", "downsample."),
    (r"\.layers\.", ".blocks."),
    (r"\.dwconv\.", ".conv_dw."),
    (r"\.layernorm\.", ".norm."),
    (r"\.pwconv([12])\.", r".mlp.fc\1."),
    (r"\.layer_scale_parameter$", ".gamma"),
)
# The best canvases of at most four crops, (columns, rows), in the published order.
GRIDS = [(1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2), (3, 1), (4, 1)]


def grid_of(width: int, height: int, side: int) -> tuple[int, int]:
    """(columns, rows): most of the image used, then least wasted, then first of the list."""

    def key(number: int) -> tuple[float, float, int]:
        across, down = GRIDS[number][0] * side, GRIDS[number][1] * side
        scale = min(across / width, down / height)
        used = min(int(width * scale) * int(height * scale), width * height)
        return -used, across * down - used, number

    return GRIDS[min(range(len(GRIDS)), key=key)]


def reference_crops(image: Image.Image, side: int) -> tuple[torch.Tensor, tuple[int, int]]:
    """Crops [I, 3, S, S] by torch, and the grid (columns, rows)."""
    columns, rows = grid_of(*image.size, side)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (CLIP_MEAN, CLIP_STD))
    pixels = torch.tensor(np.asarray(image)).permute(2, 0, 1).float().div(255)
    size = (rows * side, columns * side)
    wide = torch.nn.functional.interpolate(((pixels - mean) / std)[None], size, mode="bilinear")[0]
    crops = [
        wide[:, r * side : (r + 1) * side, c * side : (c + 1) * side]
        for r in range(rows)
        for c in range(columns)
    ]
    return torch.stack(crops), (columns, rows)


class Reference(torch.nn.Module):
    """Magma from transformers' parts."""

    def __init__(self, vocab: int):
        super().__init__()
        trunk = ConvNextConfig(hidden_sizes=list(DIMS), depths=list(DEPTHS), hidden_act="gelu")
        self.trunk = ConvNextModel(trunk)
        for module in self.trunk.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.eps = 1e-5
        text = LlamaConfig(**text_config(vocab), attn_implementation="eager")
        self.language_model = LlamaForCausalLM(text)
        dim = text.hidden_size
        self.proj = torch.nn.Sequential(
            torch.nn.Linear(DIMS[-1], dim), torch.nn.GELU(), torch.nn.Linear(dim, dim)
        )
        self.row_seperator = torch.nn.Parameter(torch.zeros(1, 1, dim))

    def features(self, crops: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
        """Rows of one image with their separators, [V, D]."""
        maps = self.trunk(crops).last_hidden_state  # [I, C, n, n]
        columns, rows = grid
        whole = [torch.cat(list(maps[r * columns : (r + 1) * columns]), 2) for r in range(rows)]
        cells = self.proj(torch.cat(whole, 1).permute(1, 2, 0))  # [H, W, D]
        ended = [torch.cat([row, self.row_seperator[0]]) for row in cells]
        return torch.cat(ended)

    def forward(
        self, ids: Sequence[int], features: Sequence[torch.Tensor], image_id: int, **kwargs: Any
    ) -> Any:
        """``ids`` with one image token per image."""
        table = self.language_model.model.embed_tokens
        left = iter(features)
        parts = [next(left) if i == image_id else table(torch.tensor([i])) for i in ids]
        return self.language_model(inputs_embeds=torch.cat(parts)[None], use_cache=False, **kwargs)


def file_tensors(reference: Reference) -> dict[str, np.ndarray]:
    """The reference's tensors under the published names, with CLIP's unused head norm."""
    tensors = reference.state_dict()
    return {file_name(name): value.numpy().copy() for name, value in tensors.items()}


def file_name(name: str) -> str:
    """Published name of one of the reference's tensors."""
    part, _, rest = name.partition(".")
    if part in {"proj", "row_seperator"}:
        return f"multi_modal_projector.{name}"
    if part != "trunk":
        return name
    if rest.startswith("layernorm"):
        return f"vision_tower.clip_vision_model.trunk.head.norm.{rest.partition('.')[2]}"
    for pattern, new in TRUNK:
        rest = re.sub(pattern, new, rest)
    return f"vision_tower.clip_vision_model.trunk.{rest}"


def magma_json(vocab: int, image_id: int) -> dict[str, Any]:
    """config.json as the published code writes it: text attributes in both places."""
    text = text_config(vocab)
    return {
        **{k: v for k, v in text.items() if k != "model_type"}, "model_type": "magma",
        "vocab_size": vocab - 3, "text_config": text, "image_token_index": image_id,
        "tokenizer_vocab_size": vocab, "spatial_quant_size": 256, "mm_use_image_start_end": True,
        "vision_config": {
            "vision_backbone": "convnexttiny", "mm_projector_type": "mlp2x_gelu",
            "img_size": SIDE, "max_num_crops": 4, "img_anyres_strategy": "crop",
            "vision_feature_layer": "clip_vis_dense", "mm_hidden_size": DIMS[-1],
            "vision_tower": "convnext",
        },
    }  # fmt: skip


def preprocessor_json(side: int = SIDE) -> dict[str, Any]:
    """preprocessor_config.json of the published repository."""
    return {
        "anyres_strategy": "crop", "base_img_size": side, "num_crops": 4, "do_convert_rgb": True,
        "image_mean": list(CLIP_MEAN), "image_std": list(CLIP_STD),
        "image_processor_type": "MagmaImageProcessor", "processor_class": "MagmaProcessor",
    }  # fmt: skip


def write_checkpoint(folder: Path, *, seed: int = 0) -> Reference:
    """Write config, weights, tokenizer and image settings; returns the reference.

    The trunk ``convnexttiny`` must be in ``BACKBONES`` to read it back.
    """
    ids = write_tokenizer(folder, LLAMA3_TEMPLATE, SPECIAL)
    vocab = max(ids.values()) + 4
    reference = Reference(vocab)
    widen(reference, seed)
    with torch.no_grad():
        # Separators count as matrices of one row, LayerScale as a bias around zero.
        generator = torch.Generator().manual_seed(seed)
        reference.row_seperator.normal_(0, 0.5, generator=generator)
        reference.language_model.lm_head.weight[[ids[IMAGE]]] = 0
    save_file(file_tensors(reference), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(magma_json(vocab, ids[IMAGE])))
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor_json()))
    return reference


class MagmaPair(Pair):
    """The reference and the port with the same weights."""

    @classmethod
    def make(cls, folder: Path, *, seed: int = 0) -> Self:
        reference = write_checkpoint(folder, seed=seed)
        read = PORT.read_config(json.loads((folder / "config.json").read_text()))
        graphdef, abstract = abstract_model(PORT, read)
        params = load_params(abstract, PORT.layouts(read)["published"], file_tensors(reference))
        return cls(folder, reference, read, graphdef, params, PORT.processor(folder, read))

    @torch.no_grad()
    def image_features(self, images: Sequence[Image.Image]) -> list[torch.Tensor]:
        """Of each image, in the precision that the reference is in."""
        kind = self.reference.row_seperator.dtype
        cut = [reference_crops(image, SIDE) for image in images]
        return [self.reference.features(crops.to(kind), grid) for crops, grid in cut]

    def ids(self, prompt: Prompt, images: Sequence[Image.Image]) -> list[int]:
        """Tokens the reference's way, with one token per image, and those appended later."""
        ids = self.processor.tokenizer(prompt.text)["input_ids"]
        image, slots = self.config.image_token_id, prompt.visual_index < 0
        kept = [int(t) for t in prompt.tokens[slots]]
        assert [i for i in ids if i != image] == kept[: len(ids) - len(images)]
        return ids + kept[len(ids) - len(images) :]

    @torch.no_grad()
    def forward(self, prompt: Prompt, images: Sequence[Image.Image], **kwargs: Any) -> Any:
        """The reference on one sample."""
        features = self.image_features(images)
        image = self.config.image_token_id
        return self.reference(self.ids(prompt, images), features, image, **kwargs)

    def attentions(self, prompt: Prompt, images: Sequence[Image.Image]) -> np.ndarray:
        """Eager attention [L, N, T, T] of the reference in double precision."""
        self.reference.double()
        try:
            out = self.forward(prompt, images, output_attentions=True)
        finally:
            self.reference.float()
        return np.stack([layer[0].numpy() for layer in out.attentions])

    def projections(self) -> list[torch.nn.Module]:
        """The output projection of every decoder layer."""
        return [layer.self_attn.o_proj for layer in self.reference.language_model.model.layers]
