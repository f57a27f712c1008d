"""CountBenchQA: how many objects are there; 491 images of CountBench that the hub still has.

The captions of CountBench hold the number word, so they are not even kept in ``Sample.row``.
"""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from model_ports.errors import UserError
from vrh_jax.data.benchmarks.files import as_whole, read_json
from vrh_jax.data.benchmarks.questions import (
    Question,
    QuestionOptions,
    questions,
)
from vrh_jax.data.benchmarks.records import Record, pick, read_records
from vrh_jax.data.images import ImageFolder, ImageRef, ParquetImage
from vrh_jax.data.registry import Split, Task
from vrh_jax.data.source import Rows

# The file of big_vision (google-research/big_vision, datasets/countbenchqa/data).
QUESTIONS = "countbench_paired_questions.json"
_CAPTIONS = ("text", "caption", "image_url")


class CountBenchOptions(QuestionOptions):
    """Options of the task ``countbench``."""

    questions: Path | None = Field(
        None,
        description=f"{QUESTIONS}, for files without questions; default: beside them",
    )
    rows: Literal["all", "color"] = Field(
        "all", description="all images (491), or those with colour channels, as big_vision (490)"
    )


def load(options: CountBenchOptions, _split: Split, _count: int) -> Rows[Question]:
    """The questions of vikhyatk/CountBenchQA, nielsr/countbench or CountBench.json.

    The latter two have no questions; they come from ``questions``, entry by entry. A Parquet row
    without an image is no question (its image is gone from the web); of CountBench.json every
    entry is one, and its image is looked for as NUMBER.jpg, counted from 0.
    """
    path = pick(options.path, ("test*.parquet", "train*.parquet", "CountBench.json"))
    records = read_records(path, columns=("number",), images=options.images)
    asked = _questions(options.questions or path.parent / QUESTIONS, records)
    present = set(range(len(records)))
    if path.suffix == ".parquet":
        present = _with_image(records)
    else:
        folder = options.images or path.parent
        records = [
            Record(r.row, r.image or _numbered(folder, i), r.source) for i, r in enumerate(records)
        ]
    found = [_question(records[i], asked[i], i) for i in sorted(present)]
    if options.rows == "color":
        found = [question for question in found if _has_channels(question.image)]
    return questions(found)


TASK = Task(options=CountBenchOptions, load=load, generated=False)


def _questions(path: Path, records: list[Record]) -> list[str]:
    """The question of each record."""
    if all("question" in record.row for record in records):
        return [record.text("question") for record in records]
    entries = read_json(path)
    if not isinstance(entries, list) or len(entries) != len(records):
        count = len(entries) if isinstance(entries, list) else "no"
        raise UserError(
            f"{path}: {count} entries for {len(records)} of CountBench; questions belong to "
            "captions by their place, so the counts must agree"
        )
    return [str(entry["question"]) for entry in entries]


def _with_image(records: list[Record]) -> set[int]:
    """Numbers of the rows of Parquet files whose image is there."""
    import pyarrow.parquet as pq

    present: set[int] = set()
    groups: dict[tuple[Path, str, int], list[int]] = {}
    for i, record in enumerate(records):
        if isinstance(record.image, ParquetImage):
            place = (record.image.path, record.image.column, record.image.group)
            groups.setdefault(place, []).append(i)
    # Row group by row group, so that one at a time is in memory.
    for (path, column, group), numbers in groups.items():
        with pq.ParquetFile(path) as file:
            cells = file.read_row_group(group, columns=[column]).column(column)
        present |= {i for i, cell in zip(numbers, cells, strict=True) if _filled(cell.as_py())}
    return present


def _filled(cell: Any) -> bool:
    if isinstance(cell, dict):
        return bool(cell.get("bytes") or cell.get("path"))
    return bool(cell)


def _numbered(folder: Path, number: int) -> ImageRef:
    return ImageFolder(folder).find(f"{number}.jpg")


def _has_channels(image: ImageRef) -> bool:
    """Whether numpy sees three axes, which is how big_vision drops its one grey image."""
    try:
        with image.open() as opened:
            return len(opened.getbands()) > 1
    except Exception:  # noqa: BLE001 - an unreadable image stays a failed sample
        return True


def _question(record: Record, text: str, number: int) -> Question:
    value = as_whole(record.row["number"], f"{record.source}: number")
    return Question(
        id=f"countbench-{number}",
        kind="count",
        text=text,
        answer=str(value),
        image=record.picture(),
        image_id=f"countbench-{number}",
        source=record.source,
        rule="countbench",
        row={k: v for k, v in record.row.items() if k not in _CAPTIONS},
    )
