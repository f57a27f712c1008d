"""The verdict on one answer."""

import dataclasses
from typing import TYPE_CHECKING, Literal

from model_ports.box_format import BoxFormat
from vrh_jax.answers.box_forms import Box
from vrh_jax.answers.geometry import iou, read_box
from vrh_jax.answers.metrics import read_answer

if TYPE_CHECKING:
    from vrh_jax.data.sample import Sample

Failure = Literal["", "parse_failure", "invalid_box", "mislocated", "wrong_answer", "image_error"]


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether an answer is right, and how it fails.

    Attributes:
        correct: the benchmark's own criterion.
        failure: "" when correct; ``parse_failure`` when nothing of the expected kind can be
            read; ``invalid_box`` for a box without area; ``mislocated`` for a valid box below
            the IoU threshold; ``wrong_answer``; ``image_error`` when the image is unreadable.
        box: the stated box in stored pixels, clipped to the frame, or None.
        iou: with the true box; 0 without a box.
        reading: what was read from the answer to a question, as text; "" if nothing was.
        official: right by the benchmark's own scorer, whose rule may be laxer or stricter.
    """

    correct: bool
    failure: Failure
    box: Box | None = None
    iou: float = 0.0
    reading: str = ""
    official: bool = False


IMAGE_ERROR = Verdict(correct=False, failure="image_error")


def judge(
    sample: "Sample",
    text: object,
    box_format: BoxFormat | None = None,
    resized: tuple[int, int] = (0, 0),
    *,
    threshold: float = 0.5,
) -> Verdict:
    """Judge a printed answer by its sample's kind and rule; never throws on any text.

    Args:
        sample: the question with its target.
        text: what the model printed; anything but a string is a parse failure.
        box_format: how the model states boxes; needed for grounding only.
        resized: (width, height) of the frame that the model saw; grounding only.
        threshold: least IoU of a right box, inclusive.
    """
    if sample.kind == "grounding":
        if box_format is None or sample.box is None:
            raise ValueError(f"sample {sample.id!r}: grounding needs a box and a box format")
        box, why = read_box(text, box_format, sample.image_size, resized)
        if box is None:
            return Verdict(False, "invalid_box" if why == "invalid_box" else "parse_failure")
        overlap = iou(box, sample.box)
        right = overlap >= threshold
        return Verdict(right, "" if right else "mislocated", box, overlap, official=right)
    reading = read_answer(sample, text)
    official = reading.correct if reading.official is None else reading.official
    if not reading.value:
        return Verdict(False, "parse_failure", official=official)
    failure: Failure = "" if reading.correct else "wrong_answer"
    return Verdict(reading.correct, failure, reading=reading.value, official=official)
