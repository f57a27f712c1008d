"""Prompts, pixels and answers of a GLM-4.6V-Flash checkpoint."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from model_ports.images.glm_pixels import GlmPixels
from model_ports.vlms.glm4v.config import Glm4vConfig
from model_ports.vlms.qwen_common.processor import GridProcessor, PatchShape


@dataclasses.dataclass(kw_only=True)
class Glm4vProcessor(GridProcessor):
    """Host-side preparation.

    Attributes:
        thinking: the model thinks before it answers, as it does unless asked not to. False
            renders the published template with ``enable_thinking=False``.
    """

    OPTIONS: ClassVar[Mapping[str, type]] = {"thinking": bool}

    thinking: bool = True

    def template_variables(self) -> dict[str, Any]:
        """Variables of the chat template."""
        return {} if self.thinking else {"enable_thinking": False}


def load_processor(folder: Path, config: Glm4vConfig) -> Glm4vProcessor:
    """Tokenizer, template and pixel settings of a checkpoint folder.

    Raises:
        UserError: one of them is missing, unreadable, or not of this model.
    """
    v = config.vision
    own = Glm4vProcessor.load(
        folder,
        vocab=config.decoder.vocab,
        image_token=config.image_token,
        pixels=GlmPixels.read(folder, patch=v.patch, merge=v.merge, temporal=v.temporal),
        shape=PatchShape(v.patch, v.temporal, v.merge),
    )
    return dataclasses.replace(own, eos_ids=tuple(sorted({*own.eos_ids, *config.end_tokens})))
