"""MathVista testmini (AI4Math/MathVista, CC BY-SA 4.0): 540 choice and 460 free-form questions."""

from typing import Any

from model_ports.errors import UserError
from vrh_jax.data.benchmarks.files import as_object, as_whole
from vrh_jax.data.benchmarks.questions import (
    Question,
    QuestionOptions,
    option_of,
    questions,
)
from vrh_jax.data.benchmarks.records import Record, pick, read_records
from vrh_jax.data.registry import Split, Task
from vrh_jax.data.sample import TaskKind
from vrh_jax.data.source import Rows

COLUMNS = ("pid", "question", "choices", "precision", "answer", "question_type", "answer_type")


class MathVistaOptions(QuestionOptions):
    """Options of the task ``mathvista``."""


def load(options: MathVistaOptions, _split: Split, _count: int) -> Rows[Question]:
    """The questions of testmini: the hub's Parquet, or testmini.json with ``images/``."""
    path = pick(options.path, ("testmini*.parquet", "testmini.json", "testmini.json.gz"))
    column = "decoded_image" if path.suffix == ".parquet" else "image"
    records = read_records(path, columns=COLUMNS, image=column, images=options.images)
    return questions([_question(record) for record in records])


TASK = Task(options=MathVistaOptions, load=load, generated=False)


def _question(record: Record) -> Question:
    row: dict[str, Any] = dict(record.row)
    choices = record.texts("choices")
    answer, kind = record.text("answer"), _kind(record)
    if kind == "choice":
        if answer not in choices:  # the answer is always an option's text, never a letter
            raise UserError(f"{record.source}: answer {answer!r} is none of {list(choices)}")
        answer = option_of(answer, choices, record.source)
    elif kind == "number":
        _check_number(answer, record)
    unit = row.get("unit")
    metadata = as_object(row.get("metadata"), f"{record.source}: metadata")
    size = (metadata.get("img_width") or 0, metadata.get("img_height") or 0)
    question = record.text("question")
    return Question(
        id=str(row["pid"]),
        kind=kind,
        text=f"{question} (Unit: {unit})" if unit else question,
        answer=answer,
        image=record.picture(),
        image_id=f"mathvista-{row.get('image') or row['pid']}",
        source=record.source,
        rule="mathvista",
        category=f"{row['question_type']}/{metadata.get('task', '')}",
        choices=choices if kind == "choice" else (),
        precision=as_whole(row["precision"], f"{record.source}: precision")
        if row["answer_type"] == "float"
        else None,
        size=size,
        row=row,
    )


def _kind(record: Record) -> TaskKind:
    if record.row["question_type"] == "multi_choice":
        return "choice"
    kinds: dict[str, TaskKind] = {"integer": "number", "float": "number", "list": "text"}
    kind = kinds.get(str(record.row["answer_type"]))
    if kind is None or (record.row["answer_type"] == "float" and record.row["precision"] is None):
        raise UserError(
            f"{record.source}: answer_type = {record.row['answer_type']!r} with precision "
            f"{record.row['precision']!r}; expected integer, list, or float with a precision"
        )
    return kind


def _check_number(answer: str, record: Record) -> None:
    try:
        float(answer)
    except ValueError:
        raise UserError(f"{record.source}: answer {answer!r} is not a number") from None
