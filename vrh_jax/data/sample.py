"""One evaluation sample, whatever its benchmark."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

from PIL import Image

TaskKind = Literal["grounding", "text", "choice", "count", "number", "needle"]


@dataclasses.dataclass(frozen=True)
class Sample:
    """A question with its target.

    Attributes:
        id: unique within its benchmark and split.
        kind: how the answer is read and judged.
        text: the referring expression (grounding), the question, or the whole context (needle).
        image: loads the RGB image, called off the main thread; None for text-only samples. The
            references of ``vrh_jax.data.images`` can be pickled and read headers cheaply.
        image_size: stored (width, height) in pixels; (0, 0) without an image, and if the image
            cannot be read and its annotation has no size.
        box: target x0, y0, x1, y1 in stored pixels, half-open, or None. For questions, the
            region that the answer depends on, if known (never used to judge the answer).
        answer: expected answer text ("" for grounding). For choices, the right option's text
            or its letter; for numbers, the number in ``unit``.
        image_id: splits keep all samples of one image together.
        group: cluster for intervals (usually the image).
        choices: the options of a multiple-choice question.
        needle: for ``needle`` samples, the exact substring of ``text`` whose tokens are the
            key set.
        unit: unit of a number, such as "m"; "" for a pure number.
        precision: decimals to which a number is compared, where its benchmark says so.
        category: the benchmark's own class of the question, by which its official score is
            aggregated ("/" between levels).
        rule: the benchmark's own rule by which its answers are read; "" for the general one.
        source: where the sample comes from, "FILE#ROW" with ROW from 0.
        row: the annotation as its file has it, without the image.
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
    unit: str = ""
    precision: int | None = None
    category: str = ""
    rule: str = ""
    source: str = ""
    row: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False, repr=False)
