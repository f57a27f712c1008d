"""Result rows: one per (model, benchmark, mask, sample), as Parquet."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from model_ports.port import Model
from vrh_jax.answers import IMAGE_ERROR, judge
from vrh_jax.engine.batching import Ready
from vrh_jax.engine.session import Answer
from vrh_jax.engine.store import Row, whole_file
from vrh_jax.study.masks import MaskSpec

# Column -> Arrow type. ``expected`` of a grounding sample is its box as text; ``reading`` is what
# was read from the answer to a question; ``official`` is the verdict of the benchmark's own scorer;
# ``category`` and ``rule`` are the sample's, by which the official score is aggregated.
COLUMNS: dict[str, str] = {
    "model": "string",
    "benchmark": "string",
    "task": "string",
    "mask": "string",
    "heads": "string",
    "k": "int32",
    "draw": "int32",
    "sample_id": "string",
    "image_id": "string",
    "group": "string",
    "text": "string",
    "expected": "string",
    "reading": "string",
    "category": "string",
    "rule": "string",
    "x0": "float64",
    "y0": "float64",
    "x1": "float64",
    "y1": "float64",
    "iou": "float64",
    "correct": "bool",
    "official": "bool",
    "failure": "string",
    "error": "string",
    "n_tokens": "int32",
    "settings": "string",
}


def make_row(
    model: Model, benchmark: str, mask: MaskSpec, ready: Ready, answer: Answer | None, settings: str
) -> Row:
    """The row of one answer (None: the image could not be read)."""
    sample = ready.sample
    if answer is None:
        verdict = IMAGE_ERROR
    else:
        resized = model.processor.resized(sample.image_size)
        verdict = judge(sample, answer.text, model.port.box, resized)
    box = verdict.box or (None, None, None, None)
    corners = [float(v) if v is not None else None for v in box]
    grounding = sample.kind == "grounding"
    expected = " ".join(f"{v:g}" for v in sample.box or ()) if grounding else sample.answer
    return {
        "model": model.name,
        "benchmark": benchmark,
        "task": sample.kind,
        "mask": mask.name,
        "heads": mask.heads,
        "k": mask.k,
        "draw": mask.draw,
        "sample_id": sample.id,
        "image_id": sample.image_id,
        "group": sample.group,
        "text": "" if answer is None else answer.text,
        "expected": expected,
        "reading": verdict.reading,
        "category": sample.category,
        "rule": sample.rule,
        **dict(zip(("x0", "y0", "x1", "y1"), corners, strict=True)),
        "iou": float(verdict.iou) if grounding else None,
        "correct": bool(verdict.correct),
        "official": bool(verdict.official),
        "failure": verdict.failure,
        "error": ready.error,
        "n_tokens": 0 if answer is None else len(answer.tokens),
        "settings": settings,
    }


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write rows as Parquet, whole or not at all; the same rows give the same bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in COLUMNS.items()])
    with whole_file(path) as temporary:
        pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), temporary)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a Parquet file."""
    import pyarrow.parquet as pq

    return list(pq.read_table(path).to_pylist())
