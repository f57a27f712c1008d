"""Which question-answering benchmark a file or folder holds, for `vrh data check`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from model_ports.errors import UserError
from vrh_jax.data.benchmarks.files import read_text

# Names that a benchmark's annotations have together, of Parquet columns or keys of an object.
_SIGNS: dict[str, tuple[set[str], ...]] = {
    "cv_bench": ({"idx", "task", "choices", "source"},),
    "mmstar": ({"l2_category", "bench"},),
    "mathvista": ({"pid", "question_type", "answer_type"},),
    "countbench": ({"number", "question"}, {"number", "text", "image_url"}),
    "spatial457": ({"image_filename", "question_index", "program"},),
    "spatialrgpt": ({"qa_info", "text_q", "bbox"},),
    "vaw": ({"positive_attributes", "negative_attributes", "instance_bbox"},),
    "multiple_choice": ({"image", "question", "choices", "answer"},),
}
_KINDS = (".parquet", ".json", ".jsonl", ".gz", ".tsv")


def recognise_questions(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """(task, options) of every benchmark in a file, or in a folder and its usual subfolders."""
    if path.is_file():
        return [(task, _options(task, path)) for task in [_task(path)] if task]
    found: dict[str, dict[str, Any]] = {}
    for file in _files(path):
        task = _task(file)
        if task == "cv_bench":  # two files, one benchmark
            found[task] = {"path": file.parent}
        elif task:
            found.setdefault(f"{task} {file.stem}" if task == "vaw" else task, _options(task, file))
    return [(name.split(" ", 1)[0], options) for name, options in found.items()]


def _files(path: Path) -> Iterator[Path]:
    for folder in (path, path / "data", path / "questions", path / "L1_single"):
        if folder.is_dir():
            yield from sorted(p for p in folder.iterdir() if p.suffix in _KINDS and p.is_file())


def _options(task: str, file: Path) -> dict[str, Any]:
    return {"path": file, "images": file.parent} if task == "vaw" else {"path": file}


def _task(file: Path) -> str:
    """The task whose names the file has; "" for none."""
    names = _names(file)
    return next((t for t, signs in _SIGNS.items() if any(s <= names for s in signs)), "")


def _names(file: Path) -> set[str]:
    """Column names, or keys of the first annotation; empty if there are none."""
    if file.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return set(pq.read_schema(file).names)
        except (OSError, pa.ArrowException):
            return set()
    try:
        if file.suffix == ".tsv":
            with file.open(encoding="utf-8", errors="replace") as lines:
                return set(lines.readline().rstrip("\n").split("\t"))
        text = read_text(file)
        document = json.loads(text.split("\n", 1)[0] if ".jsonl" in file.suffixes else text)
    except (OSError, UserError, ValueError, RecursionError):
        return set()
    return _first_keys(document)


def _first_keys(document: Any) -> set[str]:
    """Keys of the first object: of a list, of an object's ``questions``, or of its values."""
    if isinstance(document, list):
        first = document[0] if document else None
        return set(first) if isinstance(first, dict) else set()
    if not isinstance(document, dict):
        return set()
    if isinstance(document.get("questions"), list):
        return _first_keys(document["questions"])
    values = [value for value in document.values() if isinstance(value, dict)]
    return set(values[0]) if values and len(values) == len(document) else set(document)
