"""What is Magma's own in a prompt: markers around the image, system turn, image settings."""

from pathlib import Path
from typing import Any

from model_ports.configs import read_json
from model_ports.errors import UserError
from model_ports.images.resize import CLIP_MEAN, CLIP_STD
from model_ports.images.stretched import Stretched
from model_ports.text import load_tokenizer, read_eos_ids, read_template
from model_ports.vlms.llava_common.processor import PLACEHOLDER, CropProcessor
from model_ports.vlms.magma.config import MagmaConfig, check_crops

START, END = "<image_start>", "<image_end>"
# The system turn of the model card and of the published evaluation adapter.
SYSTEM = "You are agent that can see, talk and act."


def load(folder: Path, config: MagmaConfig) -> CropProcessor:
    """Tokenizer, template and image settings of a checkpoint folder.

    Prompts are those of the released code: the chat template's text, tokenized with the special
    tokens that the tokenizer adds, so that two begin-of-text tokens stand first where both
    bring one. ``begin`` = 1 is the other reading.

    Raises:
        UserError: tokenizer or template missing or of another model, or an image processor file
            that asks for what this port does not do.
    """
    tokenizer = load_tokenizer(folder, config.decoder.vocab)
    vocabulary = tokenizer.get_vocab()
    if vocabulary.get(PLACEHOLDER) != config.image_token_id:
        raise UserError(
            f"{folder}: config.json says image_token_index = {config.image_token_id}, but the "
            f"tokenizer has {PLACEHOLDER} = {vocabulary.get(PLACEHOLDER)}; they are from "
            "different checkpoints"
        )
    for token in (START, END):
        if token not in vocabulary:
            raise UserError(
                f"{folder}: the tokenizer has no {token} token, so it is not Magma's; take the "
                "tokenizer files of the same checkpoint as the weights"
            )
    template = read_template(folder, tokenizer)
    if template is None:
        raise UserError(
            f"{folder} has no chat template; copy the complete tokenizer_config.json from the "
            "checkpoint"
        )
    end = {vocabulary["<|eot_id|>"]} if "<|eot_id|>" in vocabulary else set()
    return CropProcessor(
        tokenizer=tokenizer,
        eos_ids=tuple(sorted(end.union(read_eos_ids(folder, tokenizer)))),
        template=template,
        crops=read_crops(folder, config),
        image_id=config.image_token_id,
        block=f"{START}{PLACEHOLDER}{END}\n",
        system=SYSTEM,
        begin=None,
    )


def read_crops(folder: Path, config: MagmaConfig) -> Stretched:
    """How images are cut: as the image processor's file says, or config.json without it."""
    path = folder / "preprocessor_config.json"
    settings: dict[str, Any] = read_json(path) if path.is_file() else {}
    honoured = {
        "image_processor_type": "MagmaImageProcessor",
        "anyres_strategy": "crop",
        "image_mean": list(CLIP_MEAN),
        "image_std": list(CLIP_STD),
    }
    for name, value in honoured.items():
        if settings.get(name, value) != value:
            raise UserError(
                f"{folder}: the image processor has {name} = {settings[name]!r}; this port "
                f"honours {value!r}"
            )
    side = settings.get("base_img_size", config.crops.side)
    most = settings.get("num_crops", config.crops.max_crops)
    if not (isinstance(side, int) and isinstance(most, int)):
        raise UserError(
            f"{folder}: the image processor has base_img_size = {side!r} and num_crops = "
            f"{most!r}; expected whole numbers"
        )
    crops = Stretched(side=side, tokens=side // config.vision.stride, max_crops=most)
    check_crops(crops, config.vision, str(folder))
    return crops
