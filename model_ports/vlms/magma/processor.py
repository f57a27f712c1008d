"""What is Magma's own in a prompt: markers around the image, system turn, image settings."""

from pathlib import Path

from model_ports.errors import UserError
from model_ports.images.resize import CLIP_MEAN, CLIP_STD
from model_ports.images.settings import check_settings, image_settings
from model_ports.images.stretched import Stretched
from model_ports.text import (
    load_tokenizer,
    read_eos_ids,
    require_id,
    require_template,
    require_tokens,
)
from model_ports.vlms.llava_common.processor import CropProcessor
from model_ports.vlms.magma.config import MagmaConfig, check_crops
from model_ports.vlms.processor import IMAGE

BRACKETS = ("<image_start>", "<image_end>")
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
    require_id(folder, tokenizer, IMAGE, config.image_token_id)
    require_tokens(folder, tokenizer, BRACKETS, "Magma")
    return CropProcessor(
        tokenizer=tokenizer,
        eos_ids=read_eos_ids(folder, tokenizer, "<|eot_id|>"),
        template=require_template(folder, tokenizer),
        crops=read_crops(folder, config),
        image_id=config.image_token_id,
        brackets=BRACKETS,
        system=SYSTEM,
        begin=None,
    )


def read_crops(folder: Path, config: MagmaConfig) -> Stretched:
    """How images are cut: as the image processor's file says, or config.json without it."""
    where, settings = image_settings(folder)
    honoured = {
        "anyres_strategy": "crop",
        "image_mean": list(CLIP_MEAN),
        "image_std": list(CLIP_STD),
    }
    check_settings(where, settings, honoured, "MagmaImageProcessor")
    side = settings.get("base_img_size", config.crops.side)
    most = settings.get("num_crops", config.crops.max_crops)
    if not (isinstance(side, int) and isinstance(most, int)):
        raise UserError(
            f"{where}: base_img_size = {side!r} and num_crops = {most!r}; expected whole numbers"
        )
    crops = Stretched(side=side, tokens=side // config.vision.stride, max_crops=most)
    check_crops(crops, config.vision, where)
    return crops
