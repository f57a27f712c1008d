"""What is LLaVA-NeXT's own in a prompt: settings of its image processor, template, options."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, cast, get_args

from model_ports.errors import UserError
from model_ports.images.anyres import AnyRes, Lineage
from model_ports.images.resize import CLIP_MEAN, CLIP_STD
from model_ports.images.settings import image_settings
from model_ports.text import load_tokenizer, read_eos_ids, read_template
from model_ports.vlms.llava_common.processor import PLACEHOLDER, CropProcessor
from model_ports.vlms.llava_next.config import LlavaNextConfig, check_pinpoints

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


@dataclasses.dataclass
class LlavaNextProcessor(CropProcessor):
    """Host-side preparation for one checkpoint.

    Attributes:
        lineage: as in AnyRes, whose value it sets.
    """

    OPTIONS: ClassVar[Mapping[str, type]] = {**CropProcessor.OPTIONS, "lineage": str}

    lineage: str = "hf"

    def __post_init__(self) -> None:
        if self.lineage not in get_args(Lineage):
            raise UserError(
                f"processor option lineage = {self.lineage!r}; expected "
                f"{' or '.join(get_args(Lineage))}"
            )
        crops, lineage = cast(AnyRes, self.crops), cast(Lineage, self.lineage)
        self.crops = dataclasses.replace(crops, lineage=lineage)

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
    vocabulary = tokenizer.get_vocab()
    known = vocabulary.get(PLACEHOLDER)
    if config.image_token_id is not None and known != config.image_token_id:
        raise UserError(
            f"{folder}: config.json says image_token_index = {config.image_token_id}, but the "
            f"tokenizer has {PLACEHOLDER} = {known}; they are from different checkpoints"
        )
    end = {vocabulary["<|eot_id|>"]} if "<|eot_id|>" in vocabulary else set()
    return LlavaNextProcessor(
        tokenizer=tokenizer,
        eos_ids=tuple(sorted(end.union(read_eos_ids(folder, tokenizer)))),
        template=read_template(folder, tokenizer) or LLAMA3,
        crops=read_crops(folder, config),
        image_id=config.image_token_id or 0,
    )


def read_crops(folder: Path, config: LlavaNextConfig) -> AnyRes:
    """How images are cut; the image processor's file, where there is one, must agree.

    Folders of the original format have none that the original code reads.
    """
    _, settings = image_settings(folder)
    if config.file_format == "original" or not settings:
        return config.crops
    side = config.crops.side
    square = {"height": side, "width": side}
    kind = str(settings.get("image_processor_type", "LlavaNextImageProcessor"))
    if not kind.startswith("LlavaNextImageProcessor"):
        raise UserError(
            f"{folder}: image_processor_type = {kind!r}; expected LlavaNextImageProcessor"
        )
    honoured: dict[str, tuple[Any, ...]] = {
        "size": ({"shortest_edge": side}, square),
        "crop_size": (square,),
        "image_mean": (list(CLIP_MEAN),),
        "image_std": (list(CLIP_STD),),
        "resample": (3,),
        "rescale_factor": (1 / 255,),
        **dict.fromkeys(
            ("do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_pad"), (True,)
        ),
    }
    for name, allowed in honoured.items():
        if name in settings and settings[name] not in allowed:
            raise UserError(
                f"{folder}: the image processor has {name} = {settings[name]!r}; this port "
                f"honours {' or '.join(map(repr, allowed))}"
            )
    listed = settings.get("image_grid_pinpoints")
    if listed is not None and check_pinpoints(listed, side, str(folder)) != config.crops.pinpoints:
        raise UserError(
            f"{folder}: image_grid_pinpoints is {listed} in the image processor's file and "
            f"{[list(p) for p in config.crops.pinpoints]} in config.json; transformers would cut "
            "by one and read by the other"
        )
    return config.crops
