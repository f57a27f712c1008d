"""Prompts of models that read crops in place of ``<image>`` in a Llama-3 chat.

Axis letters: I crops, S side of a crop in pixels, T sequence, V visual tokens with separators.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from model_ports.errors import UserError
from model_ports.images.crops import Crops, Layout
from model_ports.images.decode import to_rgb
from model_ports.images.token_grid import TokenGrid
from model_ports.prompt import Prompt
from model_ports.text import TextProcessor

PLACEHOLDER = "<image>"


@dataclasses.dataclass
class CropProcessor(TextProcessor):
    """Host-side preparation for one checkpoint.

    Attributes:
        tokenizer, eos_ids: as in TextProcessor.
        template: chat template (Jinja), of either kind: with contents as lists of parts, or as
            strings, which get ``block`` for every image.
        crops: how images are cut.
        image_id: token id at the places of visual tokens; its embedding is replaced.
        block: what stands for an image in contents that are strings.
        system: text of a system turn to put first; None adds none.
        begin: how many begin-of-text tokens a prompt starts with; None keeps those of the
            template and adds those that the tokenizer adds.
    """

    OPTIONS: ClassVar[Mapping[str, type]] = {"system": str, "begin": int}

    template: str
    crops: Crops
    image_id: int
    block: str = f"{PLACEHOLDER}\n"
    system: str | None = None
    begin: int | None = 1

    def prepare(
        self, text: str, images: Sequence[Image.Image] = (), *, image_first: bool = True
    ) -> Prompt:
        """One user turn through the chat template, ready to answer.

        Separators are part of the features, but have no record in the prompt's TokenGrid.

        Raises:
            UserError: the text contains the image placeholder, or the template loses the text,
                an image or the system turn.
        """
        rgb = [to_rgb(image) for image in images]
        rendered = self._render(text, len(rgb), image_first=image_first)
        layouts = [self.crops.layout(image.size) for image in rgb]
        tokens, visual = self._tokenize(rendered, [len(layout.index) for layout in layouts])
        slots = np.flatnonzero(visual)
        grids, place = [], 0
        for number, layout in enumerate(layouts):
            grids.append(layout.grid(slots[place : place + len(layout.index)], number))
            place += len(layout.index)
        return Prompt(
            text=rendered,
            tokens=tokens,
            positions=np.arange(len(tokens), dtype=np.int32)[None],
            visual_index=np.where(visual, np.cumsum(visual) - 1, -1).astype(np.int32),
            grid=TokenGrid.concatenate(grids),
            images=self.pack(rgb, layouts) if rgb else {},
        )

    def pack(
        self, images: Sequence[Image.Image], layouts: Sequence[Layout]
    ) -> dict[str, np.ndarray]:
        """The model's image arrays for one prompt: ``crops`` [I, 3, S, S] of all images, and
        ``index`` int32 [V], their tokens in the order of the prompt, or SEPARATOR.

        Args:
            images: RGB, at least one.
            layouts: of each image.
        """
        cut = [self.crops.cut(image) for image in images]
        indices, before = [], 0
        for layout, crops in zip(layouts, cut, strict=True):
            moved = layout.index + before * self.crops.tokens**2
            indices.append(np.where(layout.index < 0, layout.index, moved).astype(np.int32))
            before += len(crops)
        return {"crops": np.concatenate(cut), "index": np.concatenate(indices)}

    def resized(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """(width, height) of the canvas for a stored (width, height)."""
        return self.crops.canvas(image_size)

    def _render(self, text: str, images: int, *, image_first: bool) -> str:
        if images and PLACEHOLDER in text:
            raise UserError(
                f"the question contains {PLACEHOLDER}, which marks an image in this model's "
                "prompts; remove it from the text"
            )
        block = self.block * images
        plain = block + text if image_first else f"{text}\n{block}".rstrip("\n")
        picture, words = [{"type": "image"}] * images, [_words(text)]
        parts = picture + words if image_first else words + picture
        system = self.system or ""
        # A template of parts prints strings as nothing; one of strings prints parts as they are,
        # in which an image is no placeholder.
        ways = [(parts, [_words(system)]), (plain if images else text, system)]
        for user, first in ways if images else ways[::-1]:
            rendered = self._template(user, first)
            wanted = [text.strip(), system.strip()]
            if rendered.count(PLACEHOLDER) == images and all(w in rendered for w in wanted):
                return rendered
        raise UserError(
            f"the checkpoint's chat template cannot render a question with {images} image(s)"
            f"{' and a system turn' if self.system else ''}: it gives {rendered[:200]!r}; expected "
            f"all texts and {PLACEHOLDER} once per image"
        )

    def _template(self, user: Any, system: Any) -> str:
        """The rendered turns; empty where the template does not take this kind of content."""
        from jinja2 import TemplateError

        turns = [{"role": "system", "content": system}] if self.system else []
        turns.append({"role": "user", "content": user})
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    turns, chat_template=self.template, tokenize=False, add_generation_prompt=True
                )
            )
        except (TypeError, ValueError, TemplateError):
            return ""

    def _tokenize(self, rendered: str, counts: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """(tokens int32 [T], bool [T]: a visual token or separator)."""
        chunks = rendered.split(PLACEHOLDER) if counts else [rendered]
        ids = [self.tokenizer(chunk, add_special_tokens=False)["input_ids"] for chunk in chunks]
        ids[0] = self._begin(ids[0])
        tokens, visual = [np.asarray(ids[0], np.int32)], [np.zeros(len(ids[0]), bool)]
        for count, chunk in zip(counts, ids[1:], strict=True):
            tokens += [np.full(count, self.image_id, np.int32), np.asarray(chunk, np.int32)]
            visual += [np.ones(count, bool), np.zeros(len(chunk), bool)]
        return np.concatenate(tokens), np.concatenate(visual)

    def _begin(self, ids: list[int]) -> list[int]:
        """The prompt's first tokens with as many begin-of-text tokens as ``begin`` says."""
        if self.begin is None:
            return [*self.tokenizer("")["input_ids"], *ids]
        token = self.tokenizer.bos_token_id
        if token is None:
            return ids
        while ids[:1] == [token]:
            ids = ids[1:]
        return [token] * self.begin + ids


def _words(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}
