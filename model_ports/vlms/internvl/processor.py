"""Prompts, pixels and answers of an InternVL checkpoint folder."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from PIL import Image

from model_ports.errors import UserError
from model_ports.images.crops import Layout
from model_ports.images.resize import IMAGENET_MEAN, IMAGENET_STD
from model_ports.images.settings import check_settings, image_settings, usual_settings
from model_ports.images.tiling import Tiling
from model_ports.text import (
    load_tokenizer,
    read_eos_ids,
    read_template,
    require_id,
    require_tokens,
)
from model_ports.vlms.internvl.config import InternVLConfig
from model_ports.vlms.processor import IMAGE, ChatProcessor

START, CONTEXT, END = "<img>", "<IMG_CONTEXT>", "</img>"
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


@dataclasses.dataclass(kw_only=True)
class InternVLProcessor(ChatProcessor):
    """Host-side preparation for one checkpoint.

    Attributes:
        system: a system turn to put first: a name of ``SYSTEMS`` or the text itself. None (the
            default) adds none: the checkpoint's chat template decides. ``chat`` reproduces
            ``model.chat`` of the original repositories, ``thinking`` makes InternVL3.5 think.
        max_tiles: overrides the checkpoint's largest number of tiles (the official RefCOCO
            script takes 6).
    """

    OPTIONS: ClassVar[Mapping[str, type]] = {"system": str, "max_tiles": int}

    crops: Tiling
    placeholder: str = CONTEXT
    brackets: tuple[str, str] = (START, END)
    max_tiles: int | None = None

    def __post_init__(self) -> None:
        """Put the options into effect."""
        if self.system is not None:
            self.system = SYSTEMS.get(self.system, self.system)
        if self.max_tiles is not None:
            if self.max_tiles < self.crops.min_tiles:
                raise UserError(
                    f"max_tiles = {self.max_tiles}; this checkpoint cuts images into at least "
                    f"{self.crops.min_tiles} tile(s)"
                )
            self.crops = dataclasses.replace(self.crops, max_tiles=self.max_tiles)

    def pack(
        self, images: Sequence[Image.Image], layouts: Sequence[Layout]
    ) -> dict[str, np.ndarray]:
        """``tiles`` [I, 3, S, S] of all images, whose tokens are in the order of the prompt."""
        return {"tiles": np.concatenate([self.crops.cut(image) for image in images])}

    def _plain(self, text: str, images: int, *, image_first: bool) -> str:
        """As ``model.chat`` of the original repositories puts it."""
        lines = f"{IMAGE}\n" * images
        return lines + text if image_first else text + lines


def load(folder: Path, config: InternVLConfig) -> InternVLProcessor:
    """Tokenizer, template and image settings of a checkpoint folder.

    Raises:
        UserError: tokenizer missing or of another model, a template that cannot render an image,
            or an image processor file that asks for what this port does not do.
    """
    tokenizer = load_tokenizer(folder, config.decoder.vocab, without_embedding=(VIDEO,))
    require_tokens(folder, tokenizer, (START, CONTEXT, END), "InternVL")
    if config.image_token_id is not None:
        require_id(folder, tokenizer, CONTEXT, config.image_token_id)
    # One begin-of-text token, also where template and tokenizer both bring it.
    begins = tokenizer.bos_token_id in tokenizer("")["input_ids"]
    processor = InternVLProcessor(
        tokenizer=tokenizer,
        eos_ids=read_eos_ids(folder, tokenizer, "<|im_end|>"),
        template=read_template(folder, tokenizer) or CHATML,
        crops=read_tiling(folder, config),
        image_id=tokenizer.convert_tokens_to_ids(CONTEXT),
        begin=1 if begins else None,
    )
    processor.render("?", 1, image_first=True)  # refuses a template that cannot
    return processor


def read_tiling(folder: Path, config: InternVLConfig) -> Tiling:
    """How images are cut.

    The remote format says so in config.json, and its preprocessor_config.json (a CLIP
    processor that the published code never uses) is ignored. The -hf format keeps it in the
    image processor's settings.
    """
    where, settings = image_settings(folder)
    if config.file_format == "remote":
        return config.tiling
    side = config.tiling.side
    honoured = {
        **usual_settings(IMAGENET_MEAN, IMAGENET_STD),
        "size": {"height": side, "width": side},
    }
    check_settings(where, settings, honoured, "GotOcr2ImageProcessor")
    low = settings.get("min_patches", config.tiling.min_tiles)
    high = settings.get("max_patches", config.tiling.max_tiles)
    if not (isinstance(low, int) and isinstance(high, int) and 1 <= low <= high):
        raise UserError(
            f"{where}: min_patches = {low!r} and max_patches = {high!r}; expected 1 <= min_patches "
            "<= max_patches"
        )
    # ``crop_to_patches`` is False in some files; transformers' InternVLProcessor overrules it.
    return dataclasses.replace(config.tiling, min_tiles=low, max_tiles=high)
