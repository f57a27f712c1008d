"""Prompts with images: what the processors of all families share.

Axis letters: A rotary axes, T sequence, V visual tokens.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from model_ports.errors import UserError
from model_ports.images.crops import Cutter, Layout
from model_ports.images.decode import to_rgb
from model_ports.images.resize import Size
from model_ports.images.token_grid import TokenGrid
from model_ports.images.window_patches import size_bucket
from model_ports.prompt import Prompt
from model_ports.text import BaseProcessor, render_turns

IMAGE = "<image>"


@dataclasses.dataclass(kw_only=True)
class ImageTextProcessor(BaseProcessor):
    """Prompts in which visual tokens stand in the place of a placeholder.

    A family renders the text (``render``) and packs the pixels (``pack``).

    Attributes:
        tokenizer, eos_ids: as in BaseProcessor.
        crops: how images are cut.
        placeholder: what marks an image in the rendered text.
        image_id: token id at the places of visual tokens; its embedding is replaced.
    """

    crops: Cutter
    placeholder: str
    image_id: int

    def prepare(
        self, text: str, images: Sequence[Image.Image] = (), *, image_first: bool = True
    ) -> Prompt:
        """One user turn, ready to answer, with all images before or after the text.

        Separators are part of the features, but have no record in the prompt's TokenGrid.

        Raises:
            UserError: an image that cannot be read; text that holds the placeholder; a template
                that loses the text or an image.
        """
        frames = [to_rgb(image) for image in images]
        rendered = self.render(text, len(frames), image_first=image_first)
        if rendered.count(self.placeholder) != len(frames):
            raise UserError(
                f"the rendered prompt has {rendered.count(self.placeholder)} image placeholders "
                f"for {len(frames)} images; remove {self.placeholder} from the question"
            )
        layouts = [self.crops.layout(frame.size) for frame in frames]
        tokens, places = self._tokenize(rendered, [len(layout.index) for layout in layouts])
        index = np.full(len(tokens), -1, np.int32)
        for place in places:
            index[place] = index.max() + 1 + np.arange(len(place))
        return Prompt(
            text=rendered,
            tokens=tokens,
            positions=self._positions(len(tokens), places, [frame.size for frame in frames]),
            visual_index=index,
            grid=TokenGrid.concatenate(
                [
                    layout.grid(place, number)
                    for number, (layout, place) in enumerate(zip(layouts, places, strict=True))
                ]
            ),
            images=self.pack(frames, layouts) if frames else {},
        )

    def pack(
        self, images: Sequence[Image.Image], layouts: Sequence[Layout]
    ) -> dict[str, np.ndarray]:
        """The model's image arrays for one prompt (no batch axis).

        Args:
            images: RGB, at least one.
            layouts: of each image.
        """
        raise NotImplementedError

    def resized(self, image_size: Size) -> Size:
        """(width, height) of what the model sees for a stored (width, height)."""
        return self.crops.canvas(image_size)

    def render(self, text: str, images: int, *, image_first: bool) -> str:
        """The prompt's text with one placeholder per image."""
        raise NotImplementedError

    def _tokenize(
        self, rendered: str, counts: Sequence[int]
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """(tokens int32 [T], slots of each image's visual tokens)."""
        first, *rest = self._encode(rendered.split(self.placeholder))
        tokens, places = list(first), []
        for count, ids in zip(counts, rest, strict=True):
            places.append(np.arange(len(tokens), len(tokens) + count))
            tokens += [self.image_id] * count + ids
        return np.asarray(tokens, np.int32), places

    def _encode(self, chunks: Sequence[str]) -> list[list[int]]:
        """Tokens of the text before, between and after the images."""
        return [self.tokenizer(chunk, add_special_tokens=False)["input_ids"] for chunk in chunks]

    def _positions(
        self, length: int, places: Sequence[np.ndarray], sizes: Sequence[Size]
    ) -> np.ndarray:
        """Rotary positions int32 [A, T].

        Args:
            length: T.
            places: slots of each image's visual tokens.
            sizes: stored (width, height) of each image.
        """
        return np.arange(length, dtype=np.int32)[None]


@dataclasses.dataclass(kw_only=True)
class ChatProcessor(ImageTextProcessor):
    """Prompts of a chat template of either kind: contents as lists of parts, or as strings.

    Attributes:
        template: chat template (Jinja). It puts the placeholder or ``<image>`` for an image; as
            a string, a content has ``<image>`` for every image.
        brackets: what is put around every placeholder.
        system: text of a system turn to put first; None or empty adds none.
        begin: how many begin-of-text tokens a prompt starts with; None keeps those of the
            template and adds those that the tokenizer adds.
    """

    OPTIONS: ClassVar[Mapping[str, type]] = {"system": str, "begin": int}

    template: str
    placeholder: str = IMAGE
    brackets: tuple[str, str] = ("", "")
    system: str | None = None
    begin: int | None = 1

    def render(self, text: str, images: int, *, image_first: bool) -> str:
        marks = tuple(dict.fromkeys((self.placeholder, IMAGE)))
        for word in (*marks, *filter(None, self.brackets)):
            if images and word in text:
                raise UserError(
                    f"the question contains {word}, which marks an image in this model's prompts; "
                    "remove it from the text"
                )
        for turns in self._ways(text, images, image_first=image_first):
            rendered = ""  # of a template that does not take contents of this kind
            with suppress(UserError):
                rendered = render_turns(self.tokenizer, turns, self.template)
            texts = (text.strip(), (self.system or "").strip())
            if not rendered or not all(words in rendered for words in texts):
                continue
            if not images:
                return rendered
            for mark in marks:
                if rendered.count(mark) == images:
                    return rendered.replace(mark, self.placeholder.join(self.brackets))
        raise UserError(
            f"the checkpoint's chat template cannot render a question with {images} image(s)"
            f"{' and a system turn' if self.system else ''}: it gives {rendered[:200]!r}; expected "
            f"all texts and {' or '.join(marks)} once per image. Take the template of the model's "
            "published checkpoint"
        )

    def _ways(self, text: str, images: int, *, image_first: bool) -> list[list[dict[str, Any]]]:
        """The turns in every form that a template may take, the likeliest first.

        A template of parts prints strings as nothing; one of strings prints parts as they are,
        in which an image is no placeholder.
        """
        parts = content_parts(text, images, image_first=image_first)
        plain = self._plain(text, images, image_first=image_first) if images else text
        system = self.system or ""
        ways = [(system, parts), (content_parts(system), parts), (system, plain)]
        return [
            [
                *([{"role": "system", "content": first}] if system else []),
                {"role": "user", "content": content},
            ]
            for first, content in (ways if images else ways[::-1])
        ]

    def _plain(self, text: str, images: int, *, image_first: bool) -> str:
        """A content of one string: a line per image."""
        lines = [IMAGE] * images
        return "\n".join([*lines, text] if image_first else [text, *lines])

    def _encode(self, chunks: Sequence[str]) -> list[list[int]]:
        first, *rest = super()._encode(chunks)
        return [self._begin(first), *rest]

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


def content_parts(text: str, images: int = 0, *, image_first: bool = True) -> list[dict[str, str]]:
    """Content of a turn as chat templates take it."""
    pictures, words = [{"type": "image"}] * images, [{"type": "text", "text": text}]
    return pictures + words if image_first else words + pictures


def tower_index(orders: Sequence[np.ndarray]) -> np.ndarray:
    """Which output of the tower each visual token is, int32 [V, 2]: image, and token in it.

    V is rounded up, so that few shapes are compiled.

    Args:
        orders: of each image, its tokens in the order of the prompt.
    """
    index = np.concatenate(
        [
            np.stack([np.full_like(order, number), order], axis=1)
            for number, order in enumerate(orders)
        ]
    )
    return np.pad(index, [(0, size_bucket(len(index)) - len(index)), (0, 0)])


def stack_padded(arrays: Sequence[np.ndarray], length: int) -> np.ndarray:
    """One array of all images, each padded with zeros to ``length`` along its first axis."""
    return np.stack([np.pad(a, [(0, length - len(a))] + [(0, 0)] * (a.ndim - 1)) for a in arrays])
