"""Prompts, pixels and answers of a GLM-4.6V-Flash checkpoint."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from model_ports.images.glm_pixels import GlmPixels
from model_ports.images.qwen_pixels import QwenPixels
from model_ports.vlms.qwen_common.processor import GridProcessor


@dataclasses.dataclass(kw_only=True)
class Glm4vProcessor(GridProcessor):
    """Host-side preparation.

    Attributes:
        thinking: the model thinks before it answers, as it does unless asked not to. False
            renders the published template with ``enable_thinking=False``.
    """

    PIXELS: ClassVar[type[QwenPixels]] = GlmPixels
    OPTIONS: ClassVar[Mapping[str, type]] = {"thinking": bool}

    thinking: bool = True

    def template_variables(self) -> dict[str, Any]:
        """Variables of the chat template."""
        return {} if self.thinking else {"enable_thinking": False}
