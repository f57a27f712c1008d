"""Prompts, pixels and answers of a Phi-4-Reasoning-Vision checkpoint.

Axis letters: I images of a prompt, P patches of an image, V visual tokens of a prompt.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from PIL import Image

from model_ports.errors import UserError
from model_ports.images.crops import Layout
from model_ports.images.naflex import Naflex
from model_ports.images.resize import HALF
from model_ports.images.settings import check_settings, image_settings, usual_settings
from model_ports.images.window_patches import size_bucket
from model_ports.prompt import Prompt
from model_ports.text import load_tokenizer, read_eos_ids, require_template, require_tokens
from model_ports.vlms.phi4_rv.config import Phi4RvConfig
from model_ports.vlms.processor import ChatProcessor, stack_padded, tower_index

# What a prompt ends with to make the model think, or answer at once; otherwise it chooses, and
# writes one of the two itself.
THINK, ANSWER = "<think>", "<|dummy_84|>"


@dataclasses.dataclass(kw_only=True)
class Phi4RvProcessor(ChatProcessor):
    """Host-side preparation for one checkpoint; other attributes as in ChatProcessor.

    Attributes:
        crops: every image is one grid, no square crops.
        thinking: True or False begins the model's turn for it; None lets the model choose.
        max_length: longest prompt.
    """

    OPTIONS: ClassVar[Mapping[str, type]] = {"thinking": bool}

    crops: Naflex
    begin: int | None = None  # neither the template nor the tokenizer brings a begin token
    thinking: bool | None = None
    max_length: int | None = None

    def prepare(
        self, text: str, images: Sequence[Image.Image] = (), *, image_first: bool = True
    ) -> Prompt:
        """One user turn through the chat template, ready to answer.

        Raises:
            UserError: as in ChatProcessor, and a prompt that the published code would cut off.
        """
        prompt = super().prepare(text, images, image_first=image_first)
        if self.max_length is not None and len(prompt) > self.max_length:
            raise UserError(
                f"the prompt has {len(prompt)} tokens, {len(prompt.grid)} of them of images; this "
                f"model's code keeps the first {self.max_length} and would cut the question off. "
                "Use fewer or smaller images, or a shorter text"
            )
        return prompt

    def pack(
        self, images: Sequence[Image.Image], layouts: Sequence[Layout]
    ) -> dict[str, np.ndarray]:
        """Arrays of ``Phi4Rv.features`` for one prompt (no batch axis)."""
        cut = [self.crops.cut(image) for image in images]
        most = size_bucket(max(len(patches) for patches in cut))
        columns, rows = np.transpose([self.crops.grid(image.size) for image in images])
        return {
            "patches": stack_padded(cut, most),
            "rows": rows.astype(np.int32),
            "columns": columns.astype(np.int32),
            "index": tower_index([layout.index for layout in layouts]),
        }

    def render(self, text: str, images: int, *, image_first: bool) -> str:
        end = {None: "", True: THINK, False: ANSWER}[self.thinking]
        return super().render(text, images, image_first=image_first) + end


def load(folder: Path, config: Phi4RvConfig) -> Phi4RvProcessor:
    """Tokenizer, template and image settings of a checkpoint folder.

    Raises:
        UserError: tokenizer or template missing, or of another model, or an image processor
            file that asks for what this port does not do.
    """
    tokenizer = load_tokenizer(folder, config.decoder.vocab)
    require_tokens(folder, tokenizer, (THINK, "</think>", ANSWER), "Phi-4-Reasoning-Vision")
    _check_pixels(folder, config.pixels)
    return Phi4RvProcessor(
        tokenizer=tokenizer,
        eos_ids=read_eos_ids(folder, tokenizer),
        template=require_template(folder, tokenizer),
        crops=config.pixels,
        image_id=0,
        max_length=config.max_length,
    )


def _check_pixels(folder: Path, pixels: Naflex) -> None:
    honoured = {
        **usual_settings(HALF, HALF, Image.Resampling.BILINEAR),
        "patch_size": pixels.patch,
        "min_num_patches": pixels.low,
        "max_num_patches": pixels.high,
    }
    check_settings(*image_settings(folder), honoured, "Siglip2ImageProcessorNoUpscale")
