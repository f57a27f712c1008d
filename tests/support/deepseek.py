"""A tiny DeepSeek-VL2 checkpoint, its files, and a reference put together from transformers'
DeepSeek-V2 and SigLIP.

transformers has no class for DeepSeek-VL2. What its code adds to the two is few lines: views padded
with Pillow, 2 x 2 patches joined by ``unfold``, two linear layers, rows ended by newlines and a
separator between the views.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import torch
from PIL import Image, ImageOps
from safetensors.numpy import save_file
from support.parity import load_params, save_tokenizer, widen
from support.qwen25 import Pair
from transformers import (
    AutoTokenizer,
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    SiglipVisionConfig,
    SiglipVisionModel,
)

from model_ports.port import abstract_model
from model_ports.prompt import Prompt
from model_ports.vlms.deepseek_vl2 import PORT

# ruff: noqa: RUF001 - the published tokens have full-width bars
BOS, EOS, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"
IMAGE = "<image>"
SPECIAL = (
    BOS, EOS, PAD, IMAGE, "<|ref|>", "<|/ref|>", "<|det|>", "<|/det|>", "<|grounding|>", "<|User|>",
    "<|Assistant|>",
)  # fmt: skip
# As in the published sizes: an odd number of patches, and a rest of the crop that none covers.
SIDE, PATCH = 44, 8
CANVASES = [
    [SIDE * columns, SIDE * rows]
    for columns, rows in ((1, 1), (1, 2), (2, 1), (1, 3), (3, 1), (2, 2), (3, 2), (1, 4))
]
LANGUAGE: dict[str, Any] = {
    "model_type": "deepseek_v2",
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": None,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
    "topk_method": "greedy",
    "n_group": 1,
    "topk_group": 1,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
}
CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekVLV2ForCausalLM"],
    "candidate_resolutions": CANVASES,
    "global_view_pos": "head",
    "model_type": "deepseek_vl_v2",
    "projector_config": {"model_type": "mlp_projector", "input_dim": 32, "n_embed": 64},
    "tile_tag": "2D",
    "vision_config": {
        "model_type": "vision",
        "image_size": SIDE,
        "patch_size": PATCH,
        "width": 32,
        "layers": 3,
        "heads": 4,
        "mlp_ratio": 2.27,
    },
}
PROCESSOR: dict[str, Any] = {
    "add_special_token": False,
    "candidate_resolutions": CANVASES,
    "downsample_ratio": 2,
    "ignore_id": -100,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "image_token": IMAGE,
    "mask_prompt": False,
    "normalize": True,
    "pad_token": PAD,
    "patch_size": PATCH,
    "processor_class": "DeepseekVLV2Processor",
    "sft_format": "deepseek",
}
# transformers' names -> timm's, in a block and in the pooling head; queries, keys and values apart.
BLOCK = {
    "layer_norm1": "norm1", "layer_norm2": "norm2", "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2",
    "self_attn.out_proj": "attn.proj",
}  # fmt: skip
POOL = {
    "attention.out_proj": "proj", "layernorm": "norm", "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2",
}  # fmt: skip


def views(image: Image.Image, canvases: Sequence[Sequence[int]], side: int) -> list[torch.Tensor]:
    """Pixels of the whole image [3, S, S] and of the best canvas [3, H, W], padded by Pillow."""

    def fit(number: int) -> tuple[float, float, int]:
        across, down = canvases[number]
        scale = min(across / image.width, down / image.height)
        most = image.width * image.height
        used = min(int(image.width * scale) * int(image.height * scale), most)
        return -used, across * down - used, number

    canvas = canvases[min(range(len(canvases)), key=fit)]
    found = []
    for across, down in ((side, side), canvas):
        padded = ImageOps.pad(image, (across, down), color=(127, 127, 127))
        pixels = torch.tensor(np.asarray(padded)).permute(2, 0, 1).float() / 255
        found.append((pixels - 0.5) / 0.5)
    return found


class Reference(torch.nn.Module):
    """transformers' two towers and what is between them."""

    def __init__(self, raw: dict[str, Any]) -> None:
        super().__init__()
        text, v = raw["language_config"], raw["vision_config"]
        rope = {"rope_type": "default", "rope_theta": text.get("rope_theta", 1e4)}
        sizes = {k: value for k, value in text.items() if k not in ("model_type", "rope_theta")}
        ids: dict[str, Any] = {f"{name}_token_id": None for name in ("bos", "eos", "pad")}
        self.language = DeepseekV2ForCausalLM._from_config(
            DeepseekV2Config(**sizes, rope_parameters=rope, **ids),
            attn_implementation="eager",
            experts_implementation="eager",  # the default is not for double precision
        )
        vision = SiglipVisionConfig(
            hidden_size=v["width"],
            num_hidden_layers=v["layers"],
            num_attention_heads=v["heads"],
            intermediate_size=int(v["width"] * v["mlp_ratio"]),
            image_size=v["image_size"],
            patch_size=v["patch_size"],
        )
        self.vision = SiglipVisionModel._from_config(vision, attn_implementation="eager")
        dim = text["hidden_size"]
        self.projector = torch.nn.Sequential(
            torch.nn.Linear(4 * v["width"], dim), torch.nn.GELU(), torch.nn.Linear(dim, dim)
        )
        self.image_newline = torch.nn.Parameter(torch.zeros(dim))
        self.view_seperator = torch.nn.Parameter(torch.zeros(dim))
        self.model = SimpleNamespace()  # a place for what other references keep between calls

    def tokens(self, crop: torch.Tensor) -> torch.Tensor:
        """Map of tokens [n, n, D] of one crop [3, S, S]."""
        patches = self.vision(crop[None]).last_hidden_state[0]
        side = round(len(patches) ** 0.5)
        grid = patches.T.reshape(1, -1, side, side)
        odd = side % 2
        grid = torch.nn.functional.pad(grid, (0, odd, 0, odd))
        joined = torch.nn.functional.unfold(grid, 2, stride=2)[0].T
        n = (side + odd) // 2
        return self.projector(joined).reshape(n, n, -1)

    def rows(self, view: torch.Tensor, side: int) -> torch.Tensor:
        """Tokens of a view [3, H, W] with their newlines."""
        bands = [
            torch.cat([self.tokens(crop) for crop in band.split(side, dim=2)], dim=1)
            for band in view.split(side, dim=1)
        ]
        return torch.cat([torch.cat([row, self.image_newline[None]]) for row in torch.cat(bands)])

    def features(self, found: Sequence[torch.Tensor]) -> torch.Tensor:
        """Tokens and separators [V, D] of an image's two views."""
        side = found[0].shape[1]
        whole, local = (self.rows(view, side) for view in found)
        return torch.cat([whole, self.view_seperator[None], local])

    def forward(
        self,
        chunks: Sequence[torch.Tensor],
        images: Sequence[Sequence[torch.Tensor]],
        **kwargs: Any,
    ) -> Any:
        """``chunks``: token ids before, between and after the images."""
        embed = self.language.get_input_embeddings()
        parts = [embed(chunks[0])]
        for image, chunk in zip(images, chunks[1:], strict=True):
            parts += [self.features(image), embed(chunk)]
        return self.language(inputs_embeds=torch.cat(parts)[None], use_cache=False, **kwargs)

    def tensors(self) -> dict[str, np.ndarray]:
        """All weights in the names of the published files, with every expert on its own."""
        named: dict[str, torch.Tensor] = {}
        for name, value in self.language.state_dict().items():
            head, _, kind = name.rpartition(".experts.")
            for number, expert in enumerate(value if head else ()):
                parts = expert.chunk(2) if kind == "gate_up_proj" else (expert,)
                names = kind.replace("_proj", "").split("_")
                for part, matrix in zip(names, parts, strict=True):
                    named[f"language.{head}.experts.{number}.{part}_proj.weight"] = matrix
            if not head:
                named[f"language.{name}"] = value
        named |= {f"vision.{k}": value for k, value in timm_names(self.vision.state_dict()).items()}
        for name, value in self.projector.state_dict().items():
            named[f"projector.layers.{name}"] = value
        named |= {"image_newline": self.image_newline, "view_seperator": self.view_seperator}
        return {
            name: np.array(value.detach().numpy(), copy=True, order="C")
            for name, value in named.items()
        }


def timm_names(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A SigLIP tower of transformers in the names of timm, as the published files have it."""
    state = {name.removeprefix("vision_model."): value for name, value in state.items()}
    out = {
        "pos_embed": state["embeddings.position_embedding.weight"][None],
        "attn_pool.latent": state["head.probe"],
    }
    for kind in ("weight", "bias"):
        out[f"patch_embed.proj.{kind}"] = state[f"embeddings.patch_embedding.{kind}"]
        out[f"norm.{kind}"] = state[f"post_layernorm.{kind}"]
        fused = state[f"head.attention.in_proj_{kind}"]
        third = len(fused) // 3
        out[f"attn_pool.q.{kind}"], out[f"attn_pool.kv.{kind}"] = fused[:third], fused[third:]
        for theirs, ours in POOL.items():
            out[f"attn_pool.{ours}.{kind}"] = state[f"head.{theirs}.{kind}"]
        layer = 0
        while (block := f"encoder.layers.{layer}.") + f"layer_norm1.{kind}" in state:
            fused = torch.cat([state[f"{block}self_attn.{p}_proj.{kind}"] for p in "qkv"])
            out[f"blocks.{layer}.attn.qkv.{kind}"] = fused
            for theirs, ours in BLOCK.items():
                out[f"blocks.{layer}.{ours}.{kind}"] = state[f"{block}{theirs}.{kind}"]
            layer += 1
    return out


def write_tokenizer(folder: Path) -> Any:
    """Write tokenizer and image settings; returns the tokenizer."""
    save_tokenizer(folder, SPECIAL, "", eos=EOS, pad=PAD)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"bos_token": BOS}))
    (folder / "processor_config.json").write_text(json.dumps(PROCESSOR))
    return AutoTokenizer.from_pretrained(folder)


def write_checkpoint(folder: Path, *, seed: int = 0, **language: Any) -> Reference:
    """Write config, weights, tokenizer and image settings; returns the reference."""
    tokenizer = write_tokenizer(folder)
    text = {**LANGUAGE, "vocab_size": len(tokenizer) + 5, **language}
    raw = {**CONFIG, "language_config": text}
    (folder / "config.json").write_text(json.dumps(raw))
    reference = Reference(raw)
    widen(reference, seed)
    with torch.no_grad():
        for name, value in reference.named_parameters():
            draw = torch.randn(value.shape, generator=torch.manual_seed(seed))
            if ".experts." in name:
                value.copy_(0.25 * draw)
            elif name.endswith("position_embedding.weight"):  # as large as a patch's embedding
                value.copy_(draw)
        image = tokenizer.convert_tokens_to_ids(IMAGE)
        reference.language.lm_head.weight[image] = 0  # never answer with a placeholder
    save_file(reference.tensors(), folder / "model.safetensors", metadata={"format": "pt"})
    return reference


class DeepseekPair(Pair):
    """The reference and the port with the same weights."""

    @classmethod
    def make(cls, folder: Path, *, seed: int = 0, text: dict[str, Any] | None = None) -> Self:
        reference = write_checkpoint(folder, seed=seed, **(text or {}))
        config = PORT.read_config(json.loads((folder / "config.json").read_text()))
        graphdef, abstract = abstract_model(PORT, config)
        params = load_params(abstract, PORT.layouts(config)["published"], reference.tensors())
        return cls(folder, reference, config, graphdef, params, PORT.processor(folder, config))

    def inputs(self, prompt: Prompt, images: Sequence[Image.Image]) -> dict[str, Any]:
        """Inputs of one sample from its text, in chunks around the images; tokens that were
        appended to the prompt (an answer) follow."""
        tokenizer, image = self.processor.tokenizer, self.processor.image_id
        ids = [
            tokenizer(chunk, add_special_tokens=False)["input_ids"]
            for chunk in prompt.text.split(IMAGE)
        ]
        ids[0] = [tokenizer.bos_token_id, *ids[0]]
        # More than two images are not cut.
        canvases = CANVASES if len(images) <= 2 else [[SIDE, SIDE]]
        found = [views(one, canvases, SIDE) for one in images]
        flat, n = list(ids[0]), (SIDE // PATCH + 1) // 2
        for one, chunk in zip(found, ids[1:], strict=True):
            tall, wide = (n * size // SIDE for size in one[1].shape[1:])
            flat += [image] * (n * (n + 1) + 1 + tall * (wide + 1)) + chunk
        assert prompt.tokens[: len(flat)].tolist() == flat
        ids[-1] += prompt.tokens[len(flat) :].tolist()
        kind = self.reference.image_newline.dtype
        return {
            "chunks": [torch.tensor(chunk, dtype=torch.long) for chunk in ids],
            "images": [[view.to(kind) for view in one] for one in found],
        }

    @torch.no_grad()
    def forward(self, prompt: Prompt, images: Sequence[Image.Image], **kwargs: Any) -> Any:
        """The reference on one sample, in the precision that it is in."""
        return self.reference(**self.inputs(prompt, images), **kwargs)

    def attentions(self, prompt: Prompt, images: Sequence[Image.Image]) -> np.ndarray:
        """Eager attention [L, N, T, T] of the reference in double precision (its router stays
        in single)."""
        self.reference.double()
        try:
            out = self.forward(prompt, images, output_attentions=True)
        finally:
            self.reference.float()
        return np.stack([layer[0].numpy() for layer in out.attentions])

    def projections(self) -> list[torch.nn.Module]:
        """The output projection of every decoder layer."""
        return [layer.self_attn.o_proj for layer in self.reference.language.model.layers]
