"""Prompts, pixels and answers of a checkpoint whose images are one grid of visual tokens each.

Axis letters: T sequence, V visual tokens.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from PIL import Image

from model_ports.errors import UserError
from model_ports.images.crops import Layout
from model_ports.images.qwen_pixels import QwenPixels
from model_ports.images.resize import Size
from model_ports.images.window_patches import window_patches
from model_ports.text import load_tokenizer, read_eos_ids, render_turns, require_template
from model_ports.vision.rotary import RotaryVitConfig
from model_ports.vlms.processor import (
    ImageTextProcessor,
    content_parts,
    stack_padded,
    tower_index,
)
from model_ports.vlms.qwen_common.config import GridConfig
from model_ports.vlms.qwen_common.features import TOWER_ARRAYS
from model_ports.vlms.qwen_common.positions import mrope_positions


@dataclasses.dataclass(kw_only=True)
class GridProcessor(ImageTextProcessor):
    """Host-side preparation.

    Attributes:
        PIXELS: reader of the resizing and normalisation that the family's files state.
        crops: resizing and normalisation; an image is not cut.
        template: the checkpoint's chat template (Jinja).
        vision: shape of the tower, for patches and windows.
    """

    PIXELS: ClassVar[type[QwenPixels]] = QwenPixels

    crops: QwenPixels
    template: str
    vision: RotaryVitConfig

    @classmethod
    def load(cls, folder: Path, config: GridConfig[Any]) -> Self:
        """From a checkpoint folder.

        Raises:
            UserError: tokenizer, chat template or pixel settings missing, unreadable, or not of
                this model.
        """
        tokenizer = load_tokenizer(folder, config.decoder.vocab)
        image_token, vision = config.image_token_id, config.vision
        placeholder = str(tokenizer.convert_ids_to_tokens(image_token))
        processor = cls(
            tokenizer=tokenizer,
            eos_ids=tuple(sorted({*read_eos_ids(folder, tokenizer), *config.end_tokens})),
            template=require_template(folder, tokenizer),
            placeholder=placeholder,
            image_id=image_token,
            crops=cls.PIXELS.read(
                folder, patch=vision.patch, merge=vision.merge, temporal=vision.temporal
            ),
            vision=vision,
        )
        (tokens,) = processor._encode([processor.render("?", 1, image_first=True)])
        if tokens.count(image_token) != 1:
            raise UserError(
                f"{folder}: a prompt with one image has {tokens.count(image_token)} tokens with "
                f"config.json's image_token_id {image_token} ({placeholder!r}); tokenizer, chat "
                "template and config.json are not of one checkpoint"
            )
        return processor

    def template_variables(self) -> dict[str, Any]:
        """What the chat template is given besides the turn; a model's own options go here."""
        return {}

    def pack(
        self, images: Sequence[Image.Image], layouts: Sequence[Layout]
    ) -> dict[str, np.ndarray]:
        """Arrays of ``features.tower_inputs`` and ``prompt_tokens`` for one prompt."""
        v = self.vision
        parts = [
            window_patches(
                self.crops.pixels(image),
                patch=v.patch,
                temporal=v.temporal,
                merge=v.merge,
                side=v.window_side,
            )
            for image in images
        ]
        most = max(len(part.valid) for part in parts)
        arrays = {
            name: stack_padded([getattr(part, name) for part in parts], most)
            for name in TOWER_ARRAYS
        }
        return arrays | {"index": tower_index([part.order for part in parts])}

    def render(self, text: str, images: int, *, image_first: bool) -> str:
        content = content_parts(text, images, image_first=image_first)
        turn = {"role": "user", "content": content}
        return render_turns(self.tokenizer, [turn], self.template, **self.template_variables())

    def _positions(
        self, length: int, places: Sequence[np.ndarray], sizes: Sequence[Size]
    ) -> np.ndarray:
        starts = [int(place[0]) for place in places]
        grids = [self.crops.grid(size)[::-1] for size in sizes]  # (rows, columns)
        return mrope_positions(length, starts, grids)
