"""Prompts, pixels and answers of a PaliGemma 2 checkpoint."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from model_ports.errors import UserError
from model_ports.images.crops import Layout
from model_ports.images.resize import HALF
from model_ports.images.settings import check_settings, image_settings, usual_settings
from model_ports.images.square import Square
from model_ports.prompt import Prompt
from model_ports.text import load_tokenizer, read_eos_ids, require_id, require_tokens
from model_ports.vlms.paligemma2.config import PaliGemma2Config
from model_ports.vlms.processor import IMAGE, ImageTextProcessor

LOCATIONS = ("<loc0000>", "<loc1023>")


@dataclasses.dataclass(kw_only=True)
class PaliGemma2Processor(ImageTextProcessor):
    """Host-side preparation.

    Attributes:
        crops: what an image is stretched to.
    """

    crops: Square
    placeholder: str = IMAGE

    @classmethod
    def from_folder(cls, folder: Path, config: PaliGemma2Config) -> "PaliGemma2Processor":
        """From a checkpoint folder.

        Raises:
            UserError: tokenizer missing or of another model, or an image processor file that
                asks for what this port does not do.
        """
        tokenizer = load_tokenizer(folder, config.decoder.vocab)
        require_tokens(folder, tokenizer, (IMAGE, *LOCATIONS), "PaliGemma")
        require_id(folder, tokenizer, IMAGE, config.image_token_id)
        if tokenizer.bos_token_id is None:
            raise UserError(
                f"{folder}: the tokenizer names no bos_token, which every prompt needs; take the "
                "tokenizer files of the same checkpoint as the weights"
            )
        square = Square(side=config.vision.image_size, tokens=config.vision.side)
        _check_pixels(folder, square)
        return cls(
            tokenizer=tokenizer,
            eos_ids=read_eos_ids(folder, tokenizer),
            crops=square,
            image_id=config.image_token_id,
        )

    def prepare(
        self, text: str, images: Sequence[Image.Image] = (), *, image_first: bool = True
    ) -> Prompt:
        """Image tokens, begin token, text and a newline; all of it is one prefix.

        There is no chat template.

        Raises:
            UserError: the text contains the image placeholder, or images are to follow it.
        """
        if images and not image_first:
            raise UserError("PaliGemma has its image tokens before the text; use image_first=True")
        prompt = super().prepare(text, images)
        # transformers counts PaliGemma's positions from 1.
        return dataclasses.replace(prompt, positions=prompt.positions + 1, prefix=len(prompt))

    def pack(
        self, images: Sequence[Image.Image], layouts: Sequence[Layout]
    ) -> dict[str, np.ndarray]:
        """``pixels`` [I, 3, S, S], one square of S pixels per image."""
        return {"pixels": np.concatenate([self.crops.cut(image) for image in images])}

    def render(self, text: str, images: int, *, image_first: bool) -> str:
        return f"{self.placeholder * images}{self.tokenizer.bos_token}{text}\n"

    def _encode(self, chunks: Sequence[str]) -> list[list[int]]:
        """As in ImageTextProcessor; the newline at the end is a token of its own."""
        *before, last = chunks
        *ids, words, newline = super()._encode([*before, last.removesuffix("\n"), "\n"])
        return [*ids, words + newline]


def _check_pixels(folder: Path, square: Square) -> None:
    honoured = {
        **usual_settings(HALF, HALF),
        "size": {"height": square.side, "width": square.side},
        "image_seq_length": square.tokens**2,
    }
    check_settings(*image_settings(folder), honoured, "SiglipImageProcessor")
