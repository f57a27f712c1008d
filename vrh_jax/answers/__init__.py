"""Reading and judging what models print."""

from vrh_jax.answers.box_forms import Box
from vrh_jax.answers.boxes import parse_box, parse_boxes
from vrh_jax.answers.choice import read_choice
from vrh_jax.answers.clean import final_answer, strip_thoughts
from vrh_jax.answers.formats import box_format
from vrh_jax.answers.geometry import iou, read_box
from vrh_jax.answers.judge import IMAGE_ERROR, Verdict, judge
from vrh_jax.answers.lengths import read_length
from vrh_jax.answers.metrics import read_answer
from vrh_jax.answers.numbers import read_count
from vrh_jax.answers.reading import Reading
from vrh_jax.answers.words import normalise, read_yes_no

__all__ = [
    "IMAGE_ERROR",
    "Box",
    "Reading",
    "Verdict",
    "box_format",
    "final_answer",
    "iou",
    "judge",
    "normalise",
    "parse_box",
    "parse_boxes",
    "read_answer",
    "read_box",
    "read_choice",
    "read_count",
    "read_length",
    "read_yes_no",
    "strip_thoughts",
]
