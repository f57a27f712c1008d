"""Prompts, pixels and answers of an InternVL checkpoint folder.

transformers is imported when a tokenizer is loaded, not with this module.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from model_ports.errors import UserError
from model_ports.images.decode import to_rgb
from model_ports.images.resize import IMAGENET_MEAN, IMAGENET_STD
from model_ports.images.settings import image_settings
from model_ports.images.tiling import Tiling
from model_ports.images.token_grid import TokenGrid
from model_ports.prompt import Prompt
from model_ports.text import load_tokenizer, read_eos_ids, read_template, token_slots
from model_ports.vlms.internvl.config import InternVLConfig

START, CONTEXT, END = "<img>", "<IMG_CONTEXT>", "</img>"
# Placeholders of the known templates: transformers' and the original repositories'.
PLACEHOLDERS = (CONTEXT, "<image>")
# Tokenizers of the -hf repositories have this token; the models have no embedding for it.
VIDEO = "<video>"

# The system prompt that ``model.chat`` of the original repositories adds (template
# ``internvl2_5``); ``apply_chat_template`` does not. Not used unless asked for.
REMOTE_CHAT_SYSTEM = (
    "你是书生·万象，英文名是InternVL，"  # noqa: RUF001 (the published text)
    "是由上海人工智能实验室、清华大学"
    "及多家合作单位联合开发的多模态大语言模型。"
)
# The system prompt with which InternVL3.5 thinks before it answers, as its documentation gives it.
THINKING_SYSTEM = (
    "You are an AI assistant that rigorously follows this response protocol:\n\n"
    "1. First, conduct a detailed analysis of the question. Consider different angles, potential "
    "solutions, and reason through the problem step-by-step. Enclose this entire thinking process "
    "within <think> and </think> tags.\n\n"
    "2. After the thinking section, provide a clear, concise, and direct answer to the user's "
    "question. Separate the answer from the think section with a newline.\n\n"
    "Ensure that the thinking process is thorough but remains focused on the query. The final "
    "answer should be standalone and not reference the thinking section."
)
# Names under which an option may ask for them.
SYSTEMS: Mapping[str, str] = {"chat": REMOTE_CHAT_SYSTEM, "thinking": THINKING_SYSTEM}

# The format of the published template ``internvl2_5``, for checkpoints without a chat template.
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}{{ '<image>\n' }}"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}{{ '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclasses.dataclass
class InternVLProcessor:
    """Host-side preparation for one checkpoint.

    Attributes:
        tokenizer: fast tokenizer.
        eos_ids: any of these ends an answer.
        tiling: how images are cut.
        system: a system turn to put first: a name of ``SYSTEMS`` or the text itself. None (the
            default) adds none: the checkpoint's chat template decides. ``chat`` reproduces
            ``model.chat`` of the original repositories, ``thinking`` makes InternVL3.5 think.
        max_tiles: overrides the checkpoint's largest number of tiles (the official RefCOCO
            script takes 6).
    """

    OPTIONS: ClassVar[Mapping[str, type]] = {"system": str, "max_tiles": int}

    tokenizer: Any
    eos_ids: tuple[int, ...]
    tiling: Tiling
    system: str | None = None
    max_tiles: int | None = None

    def __post_init__(self) -> None:
        """Put the options into effect."""
        if self.system is not None:
            self.system = SYSTEMS.get(self.system, self.system)
        if self.max_tiles is not None:
            if self.max_tiles < self.tiling.min_tiles:
                raise UserError(
                    f"max_tiles = {self.max_tiles}; this checkpoint cuts images into at least "
                    f"{self.tiling.min_tiles} tile(s)"
                )
            self.tiling = dataclasses.replace(self.tiling, max_tiles=self.max_tiles)

    @classmethod
    def load(cls, folder: Path, config: InternVLConfig) -> "InternVLProcessor":
        """From a checkpoint folder.

        Raises:
            UserError: tokenizer missing or of another model, or an image processor file that
                asks for what this port does not do.
        """
        tokenizer = load_tokenizer(folder, config.decoder.vocab, without_embedding=(VIDEO,))
        vocabulary = tokenizer.get_vocab()
        for token in (START, CONTEXT, END):
            if token not in vocabulary:
                raise UserError(
                    f"{folder}: the tokenizer has no {token} token, so it is not InternVL's; "
                    "take the tokenizer files of the same checkpoint as the weights"
                )
        if config.image_token_id not in {None, vocabulary[CONTEXT]}:
            raise UserError(
                f"{folder}: config.json says image_token_id = {config.image_token_id}, but the "
                f"tokenizer has {CONTEXT} = {vocabulary[CONTEXT]}; they are from different "
                "checkpoints"
            )
        tokenizer.chat_template = read_template(folder, tokenizer)
        end = {vocabulary["<|im_end|>"]} if "<|im_end|>" in vocabulary else set()
        eos_ids = tuple(sorted(end.union(read_eos_ids(folder, tokenizer))))
        processor = cls(tokenizer, eos_ids, read_tiling(folder, config))
        processor._render("?", 1, image_first=True)  # refuses a template that cannot
        return processor

    def prepare(
        self, text: str, images: Sequence[Image.Image] = (), *, image_first: bool = True
    ) -> Prompt:
        """One user turn through the checkpoint's chat template, ready to answer.

        Images are decoded to RGB; their visual tokens stand where the template puts them.

        Raises:
            UserError: the text contains an image placeholder, or the template loses images.
        """
        rgb = [to_rgb(image) for image in images]
        rendered = self._render(text, len(rgb), image_first=image_first)
        layouts = [self.tiling.layout(image.size) for image in rgb]
        counts = [len(layout.index) for layout in layouts]
        tokens, visual_index = self._tokenize(rendered, counts)
        slots = np.flatnonzero(visual_index >= 0).astype(np.int32)
        grids, first = [], 0
        for number, (layout, count) in enumerate(zip(layouts, counts, strict=True)):
            grids.append(layout.grid(slots[first : first + count], number))
            first += count
        tiles = [self.tiling.cut(image) for image in rgb]
        return Prompt(
            text=rendered,
            tokens=tokens,
            positions=np.arange(len(tokens), dtype=np.int32)[None],
            visual_index=visual_index,
            grid=TokenGrid.concatenate(grids),
            images={"tiles": np.concatenate(tiles)} if tiles else {},
        )

    def token_slots(self, prompt: Prompt, substring: str) -> np.ndarray:
        """Slots of the tokens of ``substring`` in a prompt without images."""
        return token_slots(self.tokenizer, prompt, substring)

    def resized(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """(width, height) of the canvas that a stored (width, height) is stretched to."""
        return self.tiling.canvas(image_size)

    def decode(self, tokens: Sequence[int]) -> str:
        """Answer text without end tokens; ``<ref>``, ``<box>`` and other tokens are kept."""
        kept = [int(t) for t in tokens if int(t) >= 0 and int(t) not in self.eos_ids]
        return str(
            self.tokenizer.decode(
                kept, skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )

    def _render(self, text: str, images: int, *, image_first: bool) -> str:
        """The templated turn with one CONTEXT token between START and END per image."""
        for word in (*PLACEHOLDERS, START, END):
            if images and word in text:
                raise UserError(
                    f"the question contains {word}, which marks an image in this model's prompts; "
                    "remove it from the text"
                )
        picture = [{"type": "image"}] * images
        words = [{"type": "text", "text": text}]
        parts = picture + words if image_first else words + picture
        # Templates written for text models cannot take a list, or print it as it is; they get
        # the placeholder that ``model.chat`` of the original repositories puts into the text.
        plain = "<image>\n" * images + text if image_first else text + "<image>\n" * images
        for content in (parts, plain) if images else (plain, parts):
            rendered = self._template(content)
            for placeholder in PLACEHOLDERS:
                if rendered.count(placeholder) == images and text.strip() in rendered:
                    block = f"{START}{CONTEXT}{END}"
                    return rendered.replace(placeholder, block) if images else rendered
        raise UserError(
            f"the checkpoint's chat template cannot render a question with {images} image(s): it "
            f"gives {rendered[:200]!r}; expected the text and {' or '.join(PLACEHOLDERS)}. Take "
            "the template of the model's published checkpoint"
        )

    def _template(self, content: Any) -> str:
        """The rendered turns; empty where the template does not take this kind of content."""
        from jinja2 import TemplateError

        turns = [{"role": "system", "content": self.system}] if self.system is not None else []
        turns.append({"role": "user", "content": content})
        template = self.tokenizer.chat_template or CHATML
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    turns, chat_template=template, tokenize=False, add_generation_prompt=True
                )
            )
        except (TypeError, ValueError, TemplateError):
            return ""

    def _tokenize(self, rendered: str, counts: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """(tokens, visual_index), int32 [T], with every CONTEXT token repeated per image."""
        bos = self.tokenizer.bos_token
        special = not (bos and rendered.startswith(bos))
        ids = np.asarray(self.tokenizer(rendered, add_special_tokens=special)["input_ids"])
        context = self.tokenizer.convert_tokens_to_ids(CONTEXT)
        is_image = (ids == context) & bool(counts)
        repeats = np.ones(len(ids), int)
        repeats[is_image] = counts
        tokens = np.repeat(ids, repeats).astype(np.int32)
        visual = np.repeat(is_image, repeats)
        return tokens, np.where(visual, np.cumsum(visual) - 1, -1).astype(np.int32)


def read_tiling(folder: Path, config: InternVLConfig) -> Tiling:
    """How images are cut.

    The remote format says so in config.json, and its preprocessor_config.json (a CLIP
    processor that the published code never uses) is ignored. The -hf format keeps it in the
    image processor's settings.
    """
    _, settings = image_settings(folder)
    if config.file_format == "remote" or not settings:
        return config.tiling
    tile = config.tiling.tile
    wanted = {
        "size": {"height": tile, "width": tile},
        "image_mean": list(IMAGENET_MEAN),
        "image_std": list(IMAGENET_STD),
        "resample": 3,
        "rescale_factor": 1 / 255,
        **dict.fromkeys(("do_resize", "do_rescale", "do_normalize"), True),
    }
    kind = str(settings.get("image_processor_type", "GotOcr2ImageProcessor"))
    if not kind.startswith("GotOcr2ImageProcessor"):
        raise UserError(
            f"{folder}: image_processor_type = {kind!r}; expected GotOcr2ImageProcessor, which "
            "the -hf InternVL checkpoints use"
        )
    for name, value in wanted.items():
        if settings.get(name, value) != value:
            raise UserError(
                f"{folder}: the image processor has {name} = {settings[name]!r}; this port "
                f"honours {value!r}"
            )
    low = settings.get("min_patches", config.tiling.min_tiles)
    high = settings.get("max_patches", config.tiling.max_tiles)
    if not (isinstance(low, int) and isinstance(high, int) and 1 <= low <= high):
        raise UserError(
            f"{folder}: the image processor has min_patches = {low!r} and max_patches = {high!r}; "
            "expected 1 <= min_patches <= max_patches"
        )
    # ``crop_to_patches`` is False in some files; transformers' InternVLProcessor overrules it.
    return dataclasses.replace(config.tiling, min_tiles=low, max_tiles=high)
