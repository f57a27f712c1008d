"""Prompts, pixels and answers of a checkpoint whose images are one grid of visual tokens each.

Axis letters: T sequence, V visual tokens.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from jinja2 import TemplateError
from PIL import Image

from model_ports.errors import UserError
from model_ports.images.decode import to_rgb
from model_ports.images.qwen_pixels import QwenPixels
from model_ports.images.token_grid import TokenGrid
from model_ports.images.window_patches import WindowPatches, size_bucket, window_patches
from model_ports.prompt import Prompt
from model_ports.text import load_tokenizer, read_eos_ids, read_template, token_slots
from model_ports.vlms.qwen_common.features import TOWER_ARRAYS
from model_ports.vlms.qwen_common.positions import mrope_positions


@dataclasses.dataclass(frozen=True)
class PatchShape:
    """How a tower cuts a frame, from config.json's ``vision_config``.

    Attributes:
        patch, temporal: a patch spans patch x patch pixels of ``temporal`` frames.
        merge: patches along one side of a visual token.
        side: visual tokens along one side of an attention window; 1 for a tower without.
    """

    patch: int
    temporal: int
    merge: int
    side: int = 1


@dataclasses.dataclass(frozen=True)
class GridProcessor:
    """Host-side preparation.

    Attributes:
        tokenizer: fast tokenizer of the checkpoint.
        eos_ids: any of these ends an answer.
        template: the checkpoint's chat template (Jinja).
        image_token: id of the image placeholder.
        pixels: resizing and normalisation.
        shape: of patches and windows.
    """

    tokenizer: Any
    eos_ids: tuple[int, ...]
    template: str
    image_token: int
    pixels: QwenPixels
    shape: PatchShape

    @classmethod
    def load(
        cls, folder: Path, *, vocab: int, image_token: int, pixels: QwenPixels, shape: PatchShape
    ) -> Self:
        """From a checkpoint folder; ``vocab`` counts the rows of the embedding table.

        Raises:
            UserError: tokenizer or chat template missing, unreadable, or not of this model.
        """
        tokenizer = load_tokenizer(folder, vocab)
        processor = cls(
            tokenizer=tokenizer,
            eos_ids=read_eos_ids(folder, tokenizer),
            template=_read_template(folder, tokenizer),
            image_token=image_token,
            pixels=pixels,
            shape=shape,
        )
        _, tokens = processor._render("?", 1, image_first=True)
        count = int((tokens == image_token).sum())
        if count != 1:
            raise UserError(
                f"{folder}: a prompt with one image has {count} tokens with config.json's "
                f"image_token_id {image_token} "
                f"({tokenizer.convert_ids_to_tokens(image_token)!r}); tokenizer, chat "
                "template and config.json are not of one checkpoint"
            )
        return processor

    def prepare(
        self, text: str, images: Sequence[Image.Image] = (), *, image_first: bool = True
    ) -> Prompt:
        """One user turn through the chat template, with all images before or after the text.

        Raises:
            UserError: an image that cannot be decoded or has too extreme a shape; text that
                holds the image placeholder itself.
        """
        rendered, tokens = self._render(text, len(images), image_first=image_first)
        marks = np.flatnonzero(tokens == self.image_token)
        if len(marks) != len(images):
            raise UserError(
                f"the rendered prompt has {len(marks)} image placeholders for {len(images)} "
                f"images; remove {self.tokenizer.convert_ids_to_tokens(self.image_token)} from "
                "the question"
            )
        frames = [to_rgb(image) for image in images]
        layouts = [self.pixels.layout(frame.size) for frame in frames]
        counts = [len(layout.index) for layout in layouts]
        tokens, starts = _expand(tokens, marks, counts)
        visual = tokens == self.image_token
        index = np.where(visual, np.cumsum(visual) - 1, -1).astype(np.int32)
        grids = [
            layout.grid(start + layout.index, number)
            for number, (layout, start) in enumerate(zip(layouts, starts, strict=True))
        ]
        sides = [self.pixels.grid(frame.size)[::-1] for frame in frames]  # (rows, columns)
        return Prompt(
            text=rendered,
            tokens=tokens,
            positions=mrope_positions(len(tokens), starts, sides),
            visual_index=index,
            grid=TokenGrid.concatenate(grids),
            images=_pack([self._patches(frame) for frame in frames]) if frames else {},
        )

    def resized(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """(width, height) of the frame that the model sees."""
        return self.pixels.frame(image_size)

    def decode(self, tokens: Sequence[int]) -> str:
        """Answer text without end tokens; other special tokens are kept."""
        kept = [int(t) for t in tokens if int(t) >= 0 and int(t) not in self.eos_ids]
        return str(
            self.tokenizer.decode(
                kept, skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )

    def token_slots(self, prompt: Prompt, substring: str) -> np.ndarray:
        """Slots of the tokens of ``substring`` (once in ``prompt.text``) in a text prompt."""
        return token_slots(self.tokenizer, prompt, substring)

    def template_variables(self) -> dict[str, Any]:
        """What the chat template is given besides the turn; a model's own options go here."""
        return {}

    def _render(self, text: str, images: int, *, image_first: bool) -> tuple[str, np.ndarray]:
        """(prompt text, int32 tokens), one placeholder per image."""
        pictures: list[dict[str, str]] = [{"type": "image"}] * images
        words = [{"type": "text", "text": text}]
        content = pictures + words if image_first else words + pictures
        try:
            rendered = self.tokenizer.apply_chat_template(
                [{"role": "user", "content": content}],
                chat_template=self.template,
                tokenize=False,
                add_generation_prompt=True,
                **self.template_variables(),
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise UserError(
                f"the checkpoint's chat template cannot render a turn with {images} image(s) and "
                f"a text ({error}); take the template of the model's published checkpoint"
            ) from error
        ids = self.tokenizer(rendered, add_special_tokens=False)["input_ids"]
        return rendered, np.asarray(ids, np.int32)

    def _patches(self, frame: Image.Image) -> WindowPatches:
        return window_patches(self.pixels.pixels(frame), **dataclasses.asdict(self.shape))


def _read_template(folder: Path, tokenizer: Any) -> str:
    template = read_template(folder, tokenizer)
    if template is None:
        raise UserError(
            f"{folder} has no chat template; copy chat_template.json, chat_template.jinja or the "
            "complete tokenizer_config.json from the checkpoint"
        )
    return template


def _expand(
    tokens: np.ndarray, marks: np.ndarray, counts: Sequence[int]
) -> tuple[np.ndarray, list[int]]:
    """Repeat each image's placeholder once per visual token: (tokens, first slot per image)."""
    repeats = np.ones(len(tokens), np.int64)
    repeats[marks] = counts
    firsts = np.cumsum(repeats) - repeats
    return np.repeat(tokens, repeats), [int(first) for first in firsts[marks]]


def _pack(parts: Sequence[WindowPatches]) -> dict[str, np.ndarray]:
    """Arrays of ``features.tower_inputs`` and ``prompt_tokens`` for one prompt (no batch axis)."""
    windows = max(len(part.valid) for part in parts)

    def stack(name: str) -> np.ndarray:
        arrays = [getattr(part, name) for part in parts]
        return np.stack(
            [np.pad(a, [(0, windows - len(a))] + [(0, 0)] * (a.ndim - 1)) for a in arrays]
        )

    index = np.concatenate(
        [
            np.stack([np.full_like(part.order, number), part.order], axis=1)
            for number, part in enumerate(parts)
        ]
    )
    index = np.pad(index, [(0, size_bucket(len(index)) - len(index)), (0, 0)])
    return {name: stack(name) for name in TOWER_ARRAYS} | {"index": index}
