"""What is LLaVA-NeXT's own in a prompt: settings of its image processor, template, options."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, cast, get_args

from model_ports.errors import UserError
from model_ports.images.anyres import AnyRes, Lineage
from model_ports.images.resize import CLIP_MEAN, CLIP_STD
from model_ports.images.settings import check_settings, image_settings, usual_settings
from model_ports.text import load_tokenizer, read_eos_ids, read_template, require_id
from model_ports.vlms.llava_common.processor import CropProcessor
from model_ports.vlms.llava_next.config import LlavaNextConfig, check_pinpoints
from model_ports.vlms.processor import IMAGE

# The published format of Llama 3, for folders without a chat template.
LLAMA3 = (
    "{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + "
    "'<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
    "{% endif %}"
)

# The system turn of the original conversation template ``llava_llama_3``.
ORIGINAL_SYSTEM = (
    "You are a helpful language and vision assistant. You are able to understand the visual "
    "content that the user provides, and assist the user with a variety of tasks using natural "
    "language."
)


@dataclasses.dataclass(kw_only=True)
class LlavaNextProcessor(CropProcessor):
    """Host-side preparation for one checkpoint.

    Attributes:
        lineage: as in AnyRes, whose value it sets.
    """

    OPTIONS: ClassVar[Mapping[str, type]] = {**CropProcessor.OPTIONS, "lineage": str}

    crops: AnyRes
    lineage: str = "hf"

    def __post_init__(self) -> None:
        if self.lineage not in get_args(Lineage):
            raise UserError(
                f"processor option lineage = {self.lineage!r}; expected "
                f"{' or '.join(get_args(Lineage))}"
            )
        self.crops = dataclasses.replace(self.crops, lineage=cast(Lineage, self.lineage))

    def like_original(self) -> "LlavaNextProcessor":
        """The prompts and canvases of LLaVA-NeXT's own inference code.

        It differs from transformers' in three ways: a system turn, two begin-of-text tokens
        (the template's and the tokenizer's), and the lineage.
        """
        return dataclasses.replace(self, system=ORIGINAL_SYSTEM, begin=2, lineage="original")


def load(folder: Path, config: LlavaNextConfig) -> LlavaNextProcessor:
    """Tokenizer, template and image settings of a checkpoint folder.

    Raises:
        UserError: tokenizer missing or of another model, or an image processor file that asks
            for what this port does not do.
    """
    tokenizer = load_tokenizer(folder, config.decoder.vocab)
    if config.image_token_id is not None:
        require_id(folder, tokenizer, IMAGE, config.image_token_id)
    return LlavaNextProcessor(
        tokenizer=tokenizer,
        eos_ids=read_eos_ids(folder, tokenizer, "<|eot_id|>"),
        template=read_template(folder, tokenizer) or LLAMA3,
        crops=read_crops(folder, config),
        image_id=config.image_token_id or 0,
    )


def read_crops(folder: Path, config: LlavaNextConfig) -> AnyRes:
    """How images are cut; the image processor's file, where there is one, must agree.

    Folders of the original format have none that the original code reads.
    """
    where, settings = image_settings(folder)
    if config.file_format == "original":
        return config.crops
    side = config.crops.side
    square = {"height": side, "width": side}
    honoured = {
        **usual_settings(CLIP_MEAN, CLIP_STD),
        "size": ({"shortest_edge": side}, square),
        "crop_size": square,
        "do_center_crop": True,
        "do_pad": True,
    }
    check_settings(where, settings, honoured, "LlavaNextImageProcessor")
    listed = settings.get("image_grid_pinpoints")
    if listed is not None and check_pinpoints(listed, side, where) != config.crops.pinpoints:
        raise UserError(
            f"{where}: image_grid_pinpoints is {listed}, but in config.json "
            f"{[list(p) for p in config.crops.pinpoints]}; transformers would cut by one and read "
            "by the other"
        )
    return config.crops
