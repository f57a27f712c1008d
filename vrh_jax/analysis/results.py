"""Result rows as aligned arrays: one cell per (model, benchmark, head set, draw).

Axis letters: n samples of a benchmark, in the same order in all its cells.
"""

import dataclasses
from typing import Any

import numpy as np

Key = tuple[str, str, str, int, int]
KEY_COLUMNS = ("model", "benchmark", "heads", "k", "draw")
TEXT_COLUMNS = ("group", "task", "failure", "category", "rule", "reading", "expected")


@dataclasses.dataclass(frozen=True)
class Cell:
    """The answers of one model on one benchmark with one head set masked.

    Attributes:
        model, benchmark, heads, k, draw: as in the rows.
        sample_id, group, task, failure: str [n].
        category, rule, reading, expected: str [n], "" where the rows lack them.
        correct: bool [n].
        official: bool [n], right by the benchmark's own scorer; ``correct`` where rows lack it.
        iou: float64 [n]; NaN for questions.
        n_tokens: int [n], length of the answer.
    """

    model: str
    benchmark: str
    heads: str
    k: int
    draw: int
    sample_id: np.ndarray
    group: np.ndarray
    task: np.ndarray
    failure: np.ndarray
    category: np.ndarray
    rule: np.ndarray
    reading: np.ndarray
    expected: np.ndarray
    correct: np.ndarray
    official: np.ndarray
    iou: np.ndarray
    n_tokens: np.ndarray

    @property
    def key(self) -> Key:
        """What the cell is found by."""
        return self.model, self.benchmark, self.heads, self.k, self.draw

    def where(self, chosen: np.ndarray) -> "Cell":
        """The cell restricted to some samples; ``chosen`` is a mask or indices."""
        fields = ("sample_id", *TEXT_COLUMNS, "correct", "official", "iou", "n_tokens")
        return dataclasses.replace(self, **{f: getattr(self, f)[chosen] for f in fields})


def make_cells(rows: Any) -> dict[Key, Cell]:
    """Cells of a table of result rows, in order of their keys.

    Args:
        rows: pyarrow Table with the columns of ``Cell``; those that may be "" may be missing.

    Raises:
        ValueError: a sample occurs twice in a cell, or the head sets of one model and
            benchmark were answered on different samples.
    """
    if rows.num_rows == 0:
        return {}
    columns = {name: rows[name].to_numpy(zero_copy_only=False) for name in rows.column_names}
    codes = [np.unique(columns[name].astype(str), return_inverse=True)[1] for name in KEY_COLUMNS]
    _, inverse = np.unique(np.stack(codes, axis=1), axis=0, return_inverse=True)
    inverse = inverse.ravel()
    order = np.argsort(inverse, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(inverse[order])) + 1)
    cells = [_cell(columns, part) for part in parts]
    ids: dict[tuple[str, str], Cell] = {}
    for cell in cells:
        first = ids.setdefault((cell.model, cell.benchmark), cell)
        if not np.array_equal(first.sample_id, cell.sample_id):
            raise ValueError(
                f"rows of {cell.key} and {first.key} are of different samples; "
                "were they written by two studies?"
            )
    return {cell.key: cell for cell in sorted(cells, key=lambda c: c.key)}


def _cell(columns: dict[str, np.ndarray], part: np.ndarray) -> Cell:
    ids = columns["sample_id"][part].astype(str)
    by_id = np.argsort(ids, kind="stable")
    part, ids = part[by_id], ids[by_id]
    model, benchmark, heads, k, draw = (columns[name][part[0]] for name in KEY_COLUMNS)
    key = (str(model), str(benchmark), str(heads), int(k), int(draw))
    texts: dict[str, Any] = {name: _text(columns, name, part) for name in TEXT_COLUMNS}
    twice = ids[1:][ids[1:] == ids[:-1]]
    if len(twice):
        raise ValueError(f"rows of {key} hold sample {twice[0]!r} twice")
    correct = columns["correct"][part].astype(bool)
    return Cell(
        *key,
        sample_id=ids,
        **texts,
        correct=correct,
        official=_official(columns, correct, part),
        iou=columns["iou"][part].astype(np.float64),
        n_tokens=columns["n_tokens"][part].astype(np.int64),
    )


def _text(columns: dict[str, np.ndarray], name: str, part: np.ndarray) -> np.ndarray:
    """A column as str; "" where it is missing or null."""
    if name not in columns:
        return np.full(len(part), "", dtype=str)
    return np.array([text or "" for text in columns[name][part]], dtype=str)


def _official(columns: dict[str, np.ndarray], correct: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Verdicts of the benchmarks' own scorers; where they are missing or null, ours."""
    if "official" not in columns:
        return correct
    found = columns["official"][part]
    return np.array([c if o is None else o for o, c in zip(found, correct, strict=True)], bool)
