"""What is DeepSeek-VL2's own in a prompt: the conversation format, special tokens, pixels."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from PIL import Image

from model_ports.configs import read_json
from model_ports.errors import UserError
from model_ports.images.letterbox import Letterbox
from model_ports.images.resize import HALF
from model_ports.images.settings import check_settings
from model_ports.prompt import Prompt
from model_ports.text import check_size, load_tokenizer, read_eos_ids
from model_ports.vlms.deepseek_vl2.config import DeepseekVl2Config
from model_ports.vlms.llava_common.processor import CropProcessor
from model_ports.vlms.processor import IMAGE

# The conversation format ``deepseek`` of the published code, which reads no chat template.
TEMPLATE = (
    "{% for message in messages %}{{ {'user': '<|User|>: ', 'assistant': '<|Assistant|>: '}"
    ".get(message['role'], '') + message['content'] | trim + '\n\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|Assistant|>:' }}{% endif %}"
)
BOS, PAD = "<｜begin▁of▁sentence｜>", "<｜▁pad▁｜>"  # noqa: RUF001 - as published
# The published code gives these to a tokenizer that lacks them, in this order.
ADDED = (
    IMAGE,
    "<|ref|>",
    "<|/ref|>",
    "<|det|>",
    "<|/det|>",
    "<|grounding|>",
    "<|User|>",
    "<|Assistant|>",
)
# With more images in a prompt, none is cut.
MAX_CUT = 2


@dataclasses.dataclass(kw_only=True)
class DeepseekVl2Processor(CropProcessor):
    """Host-side preparation for one checkpoint."""

    OPTIONS: ClassVar[Mapping[str, type]] = {"system": str}

    crops: Letterbox

    def prepare(
        self, text: str, images: Sequence[Image.Image] = (), *, image_first: bool = True
    ) -> Prompt:
        """As in CropProcessor. Of more than two images, each is one crop beside the whole view."""
        if len(images) > MAX_CUT and self.crops.cropping:
            whole = dataclasses.replace(self.crops, cropping=False)
            return dataclasses.replace(self, crops=whole).prepare(
                text, images, image_first=image_first
            )
        return super().prepare(text, images, image_first=image_first)


def load(folder: Path, config: DeepseekVl2Config) -> DeepseekVl2Processor:
    """Tokenizer and image settings of a checkpoint folder.

    Raises:
        UserError: tokenizer missing or of another model, or a processor file that asks for what
            this port does not do.
    """
    tokenizer = load_tokenizer(folder, config.decoder.vocab)
    _complete(tokenizer, folder, config.decoder.vocab)
    _check_settings(folder, config.crops)
    return DeepseekVl2Processor(
        tokenizer=tokenizer,
        eos_ids=read_eos_ids(folder, tokenizer),
        template=TEMPLATE,
        crops=config.crops,
        image_id=tokenizer.convert_tokens_to_ids(IMAGE),
    )


def _complete(tokenizer: Any, folder: Path, vocab: int) -> None:
    """Add the special tokens that the tokenizer lacks, as the published code does."""
    if tokenizer.bos_token != BOS:
        raise UserError(
            f"{folder}: the tokenizer's bos_token is {tokenizer.bos_token!r}, not {BOS!r}, so it "
            "is not DeepSeek-VL2's; take the tokenizer files of the same checkpoint as the weights"
        )
    known = tokenizer.get_vocab()
    wanted = ADDED if tokenizer.pad_token else (PAD, *ADDED)
    tokenizer.add_tokens([token for token in wanted if token not in known], special_tokens=True)
    check_size(folder, len(tokenizer), vocab)


def _check_settings(folder: Path, crops: Letterbox) -> None:
    """Refuse settings of the published processor_config.json that this port does not follow."""
    path = folder / "processor_config.json"
    if not path.is_file():
        return
    honoured = {
        "candidate_resolutions": [list(canvas) for canvas in crops.canvases],
        "patch_size": crops.patch,
        "downsample_ratio": crops.joined,
        "image_mean": list(HALF),
        "image_std": list(HALF),
        "normalize": True,
        "image_token": IMAGE,
        "sft_format": "deepseek",
    }
    check_settings(str(path), read_json(path), honoured)
