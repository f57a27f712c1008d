"""What the question-answering benchmarks share: options, and samples made from questions.

A benchmark's file is read into ``Record``s (``records``: annotation, image reference, place), and
each becomes a ``Question``, which holds everything but the image's size; that is read when a
sample is made.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from model_ports.errors import UserError
from vrh_jax.data.images import ImageRef, stored_size
from vrh_jax.data.sample import Sample, TaskKind
from vrh_jax.data.source import Key, Rows
from vrh_jax.strict import Strict

Box = tuple[float, float, float, float]


class QuestionOptions(Strict):
    """Options of a question-answering benchmark."""

    path: Path = Field(description="the benchmark's file, or the folder that holds it")
    images: Path | None = Field(
        None, description="folder of the images, where the file names them; default: beside it"
    )


@dataclasses.dataclass(frozen=True)
class Question:
    """A sample but for the size of its image; attributes as those of ``Sample``.

    Attributes:
        group: default: ``image_id``.
        size: annotated (width, height), used where the image cannot be read.
    """

    id: str
    kind: TaskKind
    text: str
    answer: str
    image: ImageRef
    image_id: str
    source: str
    rule: str = ""
    category: str = ""
    choices: tuple[str, ...] = ()
    box: Box | None = None
    group: str = ""
    unit: str = ""
    precision: int | None = None
    size: tuple[int, int] = (0, 0)
    row: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)


@dataclasses.dataclass(frozen=True)
class QuestionLoader:
    """Makes samples from questions."""

    def sample(self, row: Question, /) -> Sample:
        """The sample; reads the image's header."""
        size = stored_size(row.image)
        return Sample(
            id=row.id,
            kind=row.kind,
            text=row.text,
            image=row.image,
            image_size=size if size != (0, 0) else row.size,
            box=row.box,
            answer=row.answer,
            image_id=row.image_id,
            group=row.group or row.image_id,
            choices=row.choices,
            unit=row.unit,
            precision=row.precision,
            category=row.category,
            rule=row.rule,
            source=row.source,
            row=row.row,
        )

    def key(self, row: Question, /) -> Key:
        """The key of that sample."""
        return Key(row.image_id, row.id, row.kind, row.box is not None)


def questions(found: Sequence[Question]) -> Rows[Question]:
    """A lazy source of samples."""
    return Rows(found, QuestionLoader())


def option_of(answer: str, choices: Sequence[str], source: str) -> str:
    """The text of the right option, named by its text (first) or its letter ("C", "(C)").

    Raises:
        UserError: the answer is none of the options, or there are fewer than two.
    """
    if len(choices) > 1:
        same = [choice for choice in choices if choice.strip() == answer.strip()]
        letter = re.fullmatch(r"\W*([A-Za-z])\W*", answer)
        index = ord(letter[1].upper()) - ord("A") if letter else len(choices)
        if same or index < len(choices):
            return same[0] if same else choices[index]
    raise UserError(f"{source}: the answer {answer!r} is none of the options {list(choices)}")
