"""Spatial457, level 1 (RyanWW/Spatial457, Apache-2.0): 670 questions about single objects."""

from typing import Any

from model_ports.errors import UserError
from vrh_jax.data.benchmarks.questions import (
    Question,
    QuestionOptions,
    questions,
)
from vrh_jax.data.benchmarks.records import Record, pick, read_records
from vrh_jax.data.registry import Split, Task
from vrh_jax.data.source import Rows

LEVEL = "L1_single"


class Spatial457Options(QuestionOptions):
    """Options of the task ``spatial457``."""


def load(options: Spatial457Options, _split: Split, _count: int) -> Rows[Question]:
    """The questions of L1_single.json, of the second version's Parquet or of VLMEvalKit's table.

    A file with other levels in it gives those of ``L1_single`` only.
    """
    path = pick(
        options.path,
        (
            f"questions/{LEVEL}.json",
            f"{LEVEL}.json",
            f"{LEVEL}/*.parquet",
            "validation*.parquet",
            "vlm_eval_kit_tsv/*.tsv",
            "*.tsv",
        ),
    )
    images = options.images
    if images is None and path.suffix == ".json":
        beside = path.parent.parent if path.parent.name == "questions" else path.parent
        images = beside / "images"
    records = read_records(
        path,
        columns=("question", "answer"),
        name="image_filename",
        images=images,
        keep=lambda row: row.get("category", LEVEL) == LEVEL,
    )
    if not records:
        raise UserError(f"{path}: no question of level {LEVEL}")
    return questions([_question(record) for record in records])


TASK = Task(options=Spatial457Options, load=load, generated=False)


def _question(record: Record) -> Question:
    row: dict[str, Any] = dict(record.row)
    number = record.source.rpartition("#")[2]
    return Question(
        id=f"{LEVEL}-{row.get('index') or number}",
        kind="text",
        text=record.text("question"),
        # JSON has true and false, Parquet their names; the scorer knows them as yes and no.
        answer=record.text("answer"),
        image=record.picture(),
        image_id=str(row.get("image_filename") or f"spatial457-{row.get('index') or number}"),
        source=record.source,
        rule="spatial457",
        category=LEVEL,
        row=row,
    )
