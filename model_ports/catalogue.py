"""What the ported models are: the table of ``vrh models`` and of the README.

Every number is computed by the port from the published config (``published/NAME/config.json``,
with image settings beside it where they decide about the number of visual tokens). What no
config says, such as the language model that a model was built on, is written down here.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from model_ports.box_format import BoxFormat
from model_ports.images.crops import Cutter
from model_ports.images.glm_pixels import GlmPixels
from model_ports.images.qwen_pixels import QwenPixels
from model_ports.images.square import Square
from model_ports.port import Port, abstract_model, parameter_count
from model_ports.registry import ports

PUBLISHED = Path(__file__).parent / "published"
# The image whose visual tokens are counted.
IMAGE = (640, 480)

# Study name -> language model that it was built on. Heads of models on the same one have the
# same origin, so that they can be compared and exchanged.
BACKBONES: Mapping[str, str] = {
    "qwen2.5-vl-7b": "Qwen2.5-7B",
    "internvl3-8b": "Qwen2.5-7B",
    "qwen3-vl-8b": "Qwen3-8B",
    "internvl3.5-8b": "Qwen3-8B",
    "internvl2.5-8b": "InternLM2.5-7B",
    "llava-next-llama3-8b": "Llama-3-8B",
    "magma-8b": "Llama-3-8B",
    "paligemma2-10b": "Gemma-2-9B",
    "deepseek-vl2-small": "DeepSeekMoE-16B",
    "glm-4.6v-flash": "GLM-4-9B",
    "phi-4-reasoning-vision-15b": "Phi-4-reasoning",
    "smollm2-135m": "SmolLM2-135M",
}


@dataclasses.dataclass(frozen=True)
class VisionSide:
    """What a family reads images with.

    Attributes:
        tower, projector: in words.
        cutter: (config, folder of the published files) -> how images are cut.
    """

    tower: str
    projector: str
    cutter: Callable[[Any, Path], Cutter]


def _frame(reader: type[QwenPixels]) -> Callable[[Any, Path], Cutter]:
    """For towers that see one resized frame: its settings are beside the config."""

    def cutter(config: Any, folder: Path) -> Cutter:
        v = config.vision
        return reader.read(folder, patch=v.patch, merge=v.merge, temporal=v.temporal)

    return cutter


# By family; text models have none.
VISION: Mapping[str, VisionSide] = {
    "qwen2_5_vl": VisionSide("window ViT", "2 x 2 merger, MLP", _frame(QwenPixels)),
    "qwen3_vl": VisionSide("ViT with DeepStack", "2 x 2 merger, MLP", _frame(QwenPixels)),
    "internvl": VisionSide("InternViT", "2 x 2 shuffle, MLP", lambda config, _: config.tiling),
    "llava_next": VisionSide("CLIP ViT-L/14", "MLP", lambda config, _: config.crops),
    "magma": VisionSide("ConvNeXt-XXL", "MLP", lambda config, _: config.crops),
    "paligemma2": VisionSide(
        "SigLIP So400m",
        "linear",
        lambda config, _: Square(config.vision.image_size, config.vision.side),
    ),
    "deepseek_vl2": VisionSide(
        "SigLIP So400m", "2 x 2 shuffle, MLP", lambda config, _: config.crops
    ),
    "glm4v": VisionSide("GLM ViT", "2 x 2 convolution, MLP", _frame(GlmPixels)),
    "phi4_rv": VisionSide("SigLIP 2 So400m NaFlex", "MLP", lambda config, _: config.pixels),
}

_UNITS: Mapping[str, str] = {
    "resized_pixels": "pixels of the resized image",
    "norm1000": "0-1000",
    "norm999": "0-999",
    "norm1023": "0-1023",
    "norm1024": "0-1024",
    "unit": "0-1",
}


def published_config(name: str) -> dict[str, Any]:
    """config.json of a published checkpoint, as the package keeps it."""
    raw: dict[str, Any] = json.loads((PUBLISHED / name / "config.json").read_text(encoding="utf-8"))
    return raw


def models() -> list[dict[str, Any]]:
    """One row per published model that is ported, in the order of the study.

    Keys: name, family, hub (ids), backbone, layers, heads, kv_heads, head_dim, dim, vision,
    vision_parameters, projector, visual_tokens (of a 640 x 480 image), boxes, parameters,
    bf16_bytes, same_backbone (names). Those of the vision side are None for text models.
    """
    rows = [
        _row(port, name, hub)
        for port in ports()
        for name, hub in port.names.items()
        if (PUBLISHED / name).is_dir()
    ]
    for row in rows:
        row["same_backbone"] = [
            other["name"]
            for other in rows
            if other["backbone"] == row["backbone"] and other is not row
        ]
    return rows


def _row(port: Port, name: str, hub: Sequence[str]) -> dict[str, Any]:
    config = port.read_config(published_config(name))
    _, abstract = abstract_model(port, config, jnp.bfloat16)
    count, d, side = parameter_count(abstract), config.decoder, VISION.get(port.family)
    tower = parameter_count(abstract["vision"]) if side else None
    layout = side.cutter(config, PUBLISHED / name).layout(IMAGE) if side else None
    return {
        "name": name,
        "family": port.family,
        "hub": list(hub),
        "backbone": BACKBONES[name],
        "layers": d.layers,
        "heads": d.heads,
        "kv_heads": d.kv_heads,
        "head_dim": d.head_dim,
        "dim": d.dim,
        "vision": side.tower if side else None,
        "vision_parameters": tower,
        "projector": side.projector if side else None,
        "visual_tokens": len(layout.rect) if layout else None,
        "boxes": _boxes(port.box),
        "parameters": count,
        "bf16_bytes": 2 * count,
    }


def _boxes(box: BoxFormat | None) -> str | None:
    if box is None:
        return None
    return _UNITS[box.units] + (", y first" if box.y_first else "")


HEADER = ("model", "hub", "backbone", "layers x heads (KV)", "vision tower", "projector",
          "tokens of 640 x 480", "boxes", "parameters", "bf16", "same backbone")  # fmt: skip


def cells(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The table's cells as text, one list per row of ``models``, in the order of HEADER."""
    return [
        [
            row["name"],
            " or ".join(row["hub"]),
            row["backbone"],
            f"{row['layers']} x {row['heads']} ({row['kv_heads']})",
            f"{row['vision']}, {row['vision_parameters'] / 1e9:.2f} B" if row["vision"] else "",
            row["projector"] or "",
            f"{row['visual_tokens']:,}" if row["visual_tokens"] else "",
            row["boxes"] or "text only",
            f"{row['parameters'] / 1e9:.3f} B",
            f"{row['bf16_bytes'] / 1e9:.1f} GB",
            ", ".join(row["same_backbone"]),
        ]
        for row in rows
    ]


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table as it stands in the README."""
    lines = [HEADER, ["---"] * len(HEADER), *cells(rows)]
    return "\n".join(f"| {' | '.join(cell or '-' for cell in line)} |" for line in lines) + "\n"
