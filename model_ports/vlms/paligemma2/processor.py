"""Prompts, pixels and answers of a PaliGemma 2 checkpoint.

Axis letters: T sequence, V visual tokens.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from model_ports.errors import UserError
from model_ports.images.decode import to_rgb
from model_ports.images.resize import HALF
from model_ports.images.settings import check_settings
from model_ports.images.square import Square
from model_ports.images.token_grid import TokenGrid
from model_ports.prompt import Prompt
from model_ports.text import TextProcessor, load_tokenizer, read_eos_ids
from model_ports.vlms.paligemma2.config import PaliGemma2Config

IMAGE = "<image>"
LOCATIONS = ("<loc0000>", "<loc1023>")


@dataclasses.dataclass
class PaliGemma2Processor(TextProcessor):
    """Host-side preparation.

    Attributes:
        tokenizer, eos_ids: as in TextProcessor.
        image_token: id of the image placeholder.
        square: what an image is stretched to.
    """

    image_token: int
    square: Square

    @classmethod
    def from_folder(cls, folder: Path, config: PaliGemma2Config) -> "PaliGemma2Processor":
        """From a checkpoint folder.

        Raises:
            UserError: tokenizer missing or of another model, or an image processor file that
                asks for what this port does not do.
        """
        tokenizer = load_tokenizer(folder, config.decoder.vocab)
        vocabulary = tokenizer.get_vocab()
        for token in (IMAGE, *LOCATIONS):
            if token not in vocabulary:
                raise UserError(
                    f"{folder}: the tokenizer has no {token} token, so it is not PaliGemma's; "
                    "take the tokenizer files of the same checkpoint as the weights"
                )
        if vocabulary[IMAGE] != config.image_token:
            raise UserError(
                f"{folder}: config.json says the image token is {config.image_token}, but the "
                f"tokenizer has {IMAGE} = {vocabulary[IMAGE]}; they are from different checkpoints"
            )
        if tokenizer.bos_token_id is None:
            raise UserError(
                f"{folder}: the tokenizer names no bos_token, which every prompt needs; take the "
                "tokenizer files of the same checkpoint as the weights"
            )
        vision = config.vision
        _check_pixels(folder, vision.image_size, vision.side**2)
        eos = read_eos_ids(folder, tokenizer)
        square = Square(side=vision.image_size, tokens=vision.side)
        return cls(tokenizer, eos, config.image_token, square)

    def prepare(
        self, text: str, images: Sequence[Image.Image] = (), *, image_first: bool = True
    ) -> Prompt:
        """Image tokens, begin token, text and a newline; all of it is one prefix.

        There is no chat template. The newline is a token of its own.

        Raises:
            UserError: the text contains the image placeholder, or images are to follow it.
        """
        if images and IMAGE in text:
            raise UserError(
                f"the question contains {IMAGE}, which marks an image in this model's prompts; "
                "remove it from the text"
            )
        if images and not image_first:
            raise UserError("PaliGemma has its image tokens before the text; use image_first=True")
        rgb = [to_rgb(image) for image in images]
        each = self.square.tokens**2
        visual = each * len(rgb)
        words = [*self._encode(text), *self._encode("\n")]
        ids = [*[self.image_token] * visual, self.tokenizer.bos_token_id, *words]
        slots = np.arange(visual, dtype=np.int32).reshape(-1, each)
        grids = [
            self.square.layout(image.size).grid(slot, number)
            for number, (image, slot) in enumerate(zip(rgb, slots, strict=True))
        ]
        pixels = [self.square.cut(image) for image in rgb]
        order = np.arange(len(ids), dtype=np.int32)
        return Prompt(
            text=f"{IMAGE * len(rgb)}{self.tokenizer.bos_token}{text}\n",
            tokens=np.asarray(ids, np.int32),
            positions=order[None] + 1,  # transformers counts PaliGemma's positions from 1
            visual_index=np.where(order < visual, order, -1).astype(np.int32),
            grid=TokenGrid.concatenate(grids),
            images={"pixels": np.concatenate(pixels)} if pixels else {},
            prefix=len(ids),
        )

    def resized(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """(width, height) of the square, whatever the stored (width, height)."""
        return self.square.canvas(image_size)

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids


def _check_pixels(folder: Path, side: int, tokens: int) -> None:
    """Refuse image processor settings that this port does not follow."""
    wanted: dict[str, Any] = {
        "size": {"height": side, "width": side},
        "image_seq_length": tokens,
        "image_mean": list(HALF),
        "image_std": list(HALF),
        "resample": int(Image.Resampling.BICUBIC),
        "rescale_factor": 1 / 255,
        **dict.fromkeys(("do_resize", "do_rescale", "do_normalize"), True),
    }
    check_settings(folder, "SiglipImageProcessor", wanted)
