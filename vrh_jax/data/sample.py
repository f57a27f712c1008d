"""One evaluation sample, whatever its benchmark."""

import dataclasses
from collections.abc import Callable
from typing import Literal

from PIL import Image

TaskKind = Literal["grounding", "text", "choice", "count", "needle"]


@dataclasses.dataclass(frozen=True)
class Sample:
    """A question with its target.

    Attributes:
        id: unique within its benchmark and split.
        kind: how the answer is read and judged.
        text: the referring expression (grounding), the question, or the whole context (needle).
        image: loads the RGB image, called off the main thread; None for text-only samples.
        image_size: stored (width, height) in pixels; (0, 0) without an image.
        box: target x0, y0, x1, y1 in stored pixels, half-open, or None. For questions, the
            region that the answer depends on, if known (never used to judge the answer).
        answer: expected answer text ("" for grounding).
        image_id: splits keep all samples of one image together.
        group: cluster for intervals (usually the image).
        choices: the options of a multiple-choice question.
        needle: for ``needle`` samples, the exact substring of ``text`` whose tokens are the
            key set.
    """

    id: str
    kind: TaskKind
    text: str
    image: Callable[[], Image.Image] | None
    image_size: tuple[int, int]
    box: tuple[float, float, float, float] | None
    answer: str
    image_id: str
    group: str
    choices: tuple[str, ...] = ()
    needle: str = ""
