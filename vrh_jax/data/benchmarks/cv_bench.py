"""CV-Bench (nyu-visionx/CV-Bench, Apache-2.0): 2,638 choice questions, 1,438 in 2D, 1,200 in 3D."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from model_ports.errors import UserError
from vrh_jax.data.benchmarks.questions import (
    Question,
    QuestionOptions,
    option_of,
    questions,
)
from vrh_jax.data.benchmarks.records import Record, read_records
from vrh_jax.data.images import image_key
from vrh_jax.data.registry import Split, Task
from vrh_jax.data.source import Rows

COLUMNS = ("idx", "type", "task", "question", "choices", "answer", "source")
SOURCES = ("ADE20K", "COCO", "Omni3D")


class CvBenchOptions(QuestionOptions):
    """Options of the task ``cv_bench``."""

    part: Literal["all", "2d", "3d"] = Field("all", description="questions of one part only")


def load(options: CvBenchOptions, _split: Split, _count: int) -> Rows[Question]:
    """The questions of test_2d and test_3d (Parquet or JSON lines), or of the older test file."""
    wanted = None if options.part == "all" else options.part.upper()
    found = [
        _question(record)
        for path in _files(options.path)
        for record in read_records(
            path,
            columns=COLUMNS,
            name="filename",
            images=options.images,
            keep=lambda row: wanted in (None, str(row["type"]).upper()),
        )
    ]
    if not found:
        raise UserError(f"{options.path}: no question of part {options.part!r}")
    return questions(found)


TASK = Task(options=CvBenchOptions, load=load, generated=False)


def _files(path: Path) -> Sequence[Path]:
    """The files of both parts; Parquet, which holds the images, before JSON lines."""
    if path.is_file():
        return [path]
    for suffix in ("parquet", "jsonl"):
        for names in (("test_2d", "test_3d"), ("test",)):
            files = [path / f"{name}.{suffix}" for name in names]
            if any(file.is_file() for file in files):
                return files
    raise UserError(
        f"{path}: expected test_2d and test_3d (.parquet or .jsonl), or test.parquet or test.jsonl"
    )


def _question(record: Record) -> Question:
    row, source = record.row, record.source
    part = record.text("type").upper()
    choices = record.texts("choices")
    # Questions on one picture stay together, also where boxes are drawn on it.
    name = str(row.get("source_filename") or row.get("filename") or f"{part}-{row['idx']}")
    return Question(
        id=f"{part}-{row['idx']}",
        kind="choice",
        text=record.text("question"),
        answer=option_of(record.text("answer"), choices, source),
        image=record.picture(),
        image_id=image_key(name) if row["source"] == "COCO" else f"{row['source']}/{name}",
        source=source,
        rule="cv_bench",
        category=f"{row['source']}/{row['task']}",
        choices=choices,
        row=row,
    )
