"""Annotation files: JSON, JSON lines, CSV and Parquet, with errors that name file and row."""

import ast
import csv
import gzip
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from model_ports.errors import UserError
from vrh_jax.data.images import ParquetImage


def read_bytes(path: Path) -> bytes:
    """A whole file, unpacked if its name ends in .gz."""
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if path.suffix == ".gz" else data
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; check the path") from None
    except (OSError, EOFError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None


def read_text(path: Path) -> str:
    """A whole file as UTF-8, with or without a byte order mark, .gz or plain."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text ({error})") from None


def read_json(path: Path) -> Any:
    """A JSON document, .gz or plain."""
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error})") from None


def as_list(raw: Any, where: str) -> list[Any]:
    """A list, also where a column holds its text ("['a', 'b']"); [] for null.

    Raises:
        UserError: anything else.
    """
    value = _parsed(raw)
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        raise UserError(f"{where} = {raw!r}; expected a list")
    return list(value)


def as_object(raw: Any, where: str) -> dict[str, Any]:
    """An object, also where a column holds its text; {} for null.

    Raises:
        UserError: anything else.
    """
    value = _parsed(raw)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UserError(f"{where} = {raw!r}; expected an object")
    return value


def as_whole(raw: Any, where: str) -> int:
    """A whole number, also as text or with a fraction of zero ("3", 3.0).

    Raises:
        UserError: anything else.
    """
    try:
        number = float(raw)
        if number.is_integer() and not isinstance(raw, bool):
            return int(number)
    except (TypeError, ValueError, OverflowError):
        pass
    raise UserError(f"{where} = {raw!r}; expected a whole number")


def _parsed(raw: Any) -> Any:
    """The value that a text spells in JSON or as a Python literal, else the value itself."""
    if not isinstance(raw, str):
        return raw
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(raw)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return raw


def read_objects(path: Path) -> list[dict[str, Any]]:
    """A JSON list of objects (.json, .json.gz), or one object per line (.jsonl, .jsonl.gz)."""
    rows: Any
    if ".jsonl" in path.suffixes:
        rows = [row for _, row in read_numbered(path)]
    else:
        try:
            rows = read_json(path)
        except UserError as error:
            rows = _lines_in_json(path, error)
    if not isinstance(rows, list):
        raise UserError(f"{path}: expected a list of objects, found {type(rows).__name__}")
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise UserError(f"{path}: entry {number} is not an object, but {type(row).__name__}")
    return rows


def _lines_in_json(path: Path, error: UserError) -> list[Any]:
    """JSON lines in a file called .json, if the first line is an object; else ``error``."""
    if path.is_file() and read_text(path).lstrip().split("\n", 1)[0].strip().endswith("}"):
        return [row for _, row in read_numbered(path)]
    raise error


def read_numbered(path: Path, limit: int | None = None) -> list[tuple[int, Any]]:
    """(line number from 1, value) per line, of the first ``limit`` lines; empty ones skipped."""
    rows = []
    # Not splitlines(): U+2028 and others are legal inside a JSON string.
    for number, line in enumerate(read_text(path).split("\n")[:limit], start=1):
        if not line.strip():
            continue
        try:
            rows.append((number, json.loads(line)))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}, line {number}: not JSON ({error})") from None
    return rows


def read_csv(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Rows of a CSV file with a header.

    Raises:
        UserError: a column is missing, or a row has more or fewer fields than the header.
    """
    # Not splitlines(): U+2028, form feeds and others are legal inside a field.
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""), strict=True)
    missing = [c for c in columns if c not in (reader.fieldnames or ())]
    if missing:
        raise UserError(
            f"{path}: column {missing[0]!r} is missing; its columns are {reader.fieldnames}"
        )
    rows = []
    try:
        for row in reader:
            if None in row or None in row.values():
                raise UserError(
                    f"{path}, line {reader.line_num}: expected {len(reader.fieldnames or ())} "
                    "fields"
                )
            rows.append(row)
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: not CSV ({error})") from None
    return rows


def read_parquet(
    paths: Sequence[Path], *, columns: Sequence[str] = (), images: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Rows of Parquet files in order; image columns hold a ``ParquetImage`` and are not read.

    Args:
        columns: must be there.
        images: image columns; must be there.

    Raises:
        UserError: unreadable file or missing column.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = []
    for path in paths:
        try:
            with pq.ParquetFile(path) as file:
                names = file.schema_arrow.names
                for column in (*columns, *images):
                    if column not in names:
                        raise UserError(f"{path}: column {column!r} is missing; it has {names}")
                plain = [n for n in names if n not in images]
                for group in range(file.num_row_groups):
                    table = file.read_row_group(group, columns=plain).to_pylist()
                    for i, row in enumerate(table):
                        pictures = {c: ParquetImage(path, c, group, i) for c in images}
                        rows.append(row | pictures)
        except FileNotFoundError:
            raise UserError(f"{path}: no such file; check the path") from None
        except (OSError, pa.ArrowException) as error:
            raise UserError(f"{path}: not a readable Parquet file ({error})") from None
    return rows


def parquet_files(path: Path, stem: str) -> list[Path]:
    """The shards of a split in a folder of the hub: ``STEM-00000-of-00005.parquet`` and so on.

    Args:
        path: a file, or a folder that holds them directly or in ``data/``.
        stem: name of the split.

    Raises:
        UserError: there is none, or a shard is missing.
    """
    if path.is_file():
        return [path]
    for folder in (path, path / "data", path / stem):
        found = sorted([*folder.glob(f"{stem}.parquet"), *folder.glob(f"{stem}-*.parquet")])
        if not found:
            continue
        total = found[0].stem.rpartition("-of-")[2]
        if total.isdigit() and int(total) != len(found):
            raise UserError(
                f"{folder}: {len(found)} of the {int(total)} shards {stem}-*.parquet are there; "
                "download the rest"
            )
        return found
    raise UserError(f"{path}: no {stem}.parquet or {stem}-*.parquet in it or in its data/")
