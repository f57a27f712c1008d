"""The verdict on one answer."""

import dataclasses
from typing import TYPE_CHECKING, Literal

from vrh_jax.answers.boxes import Box
from vrh_jax.answers.choice import read_choice
from vrh_jax.answers.clean import final_answer
from vrh_jax.answers.geometry import iou, read_box
from vrh_jax.answers.words import SPECIAL, declared, normalise, read_count, read_yes_no

if TYPE_CHECKING:
    from model_ports.port import BoxFormat
    from vrh_jax.data.sample import Sample

Failure = Literal["", "parse_failure", "invalid_box", "mislocated", "wrong_answer", "image_error"]
_YES_NO = {"yes": True, "true": True, "no": False, "false": False}


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
    """

    correct: bool
    failure: Failure
    box: Box | None = None
    iou: float = 0.0


IMAGE_ERROR = Verdict(correct=False, failure="image_error")


def judge(
    sample: "Sample",
    text: object,
    box_format: "BoxFormat | None" = None,
    resized: tuple[int, int] = (0, 0),
    *,
    threshold: float = 0.5,
) -> Verdict:
    """Judge a printed answer by the kind of its sample; never throws on any text.

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
        return Verdict(right, "" if right else "mislocated", box, overlap)
    right_or_none = _right(sample, text)
    if right_or_none is None:
        return Verdict(False, "parse_failure")
    return Verdict(right_or_none, "" if right_or_none else "wrong_answer")


def _right(sample: "Sample", text: object) -> bool | None:
    """Whether a question's answer is right; None if it cannot be read."""
    if sample.kind == "choice":
        index = read_choice(text, sample.choices)
        return None if index is None else index == _expected_choice(sample)
    if sample.kind == "needle":
        said, needle = (f" {normalise(t)} " for t in (_plain(text), sample.answer))
        return None if not said.strip() else needle in said
    expected = normalise(sample.answer)
    if expected in _YES_NO:
        answer = read_yes_no(text)
        return None if answer is None else answer == _YES_NO[expected]
    number = read_count(expected)
    if sample.kind == "count" or (number is not None and len(expected.split()) == 1):
        count = read_count(text)
        return None if count is None else count == number
    said = normalise(declared(text))
    return None if not said else said == expected


def _plain(text: object) -> str:
    return SPECIAL.sub(" ", final_answer(text))


def _expected_choice(sample: "Sample") -> int | None:
    """Index of the right option; the answer is its text (first) or its letter."""
    answer = normalise(sample.answer)
    same = [i for i, choice in enumerate(sample.choices) if normalise(choice) == answer]
    return same[0] if same else read_choice(sample.answer, sample.choices)
