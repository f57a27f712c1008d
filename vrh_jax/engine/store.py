"""Files that are either whole or absent, and finished pieces of a stage."""

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from model_ports.errors import UserError

Row = dict[str, Any]


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path that becomes ``path`` when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # The suffix stays last, since some writers add their own when it is another.
    temporary = path.with_name(f".{os.getpid()}.tmp.{path.name}")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write JSON, whole or not at all."""
    with whole_file(path) as temporary:
        temporary.write_text(json.dumps(value, indent=1) + "\n")


@contextlib.contextmanager
def only_run(folder: Path) -> Iterator[None]:
    """Hold the folder for this process; a killed process lets go of it by itself.

    A folder that is still empty afterwards (nothing could be started) is removed again.

    Raises:
        UserError: another run is at work in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = folder / ".lock"
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"{folder}: another run is working in this folder; wait for it, or use --out"
            ) from None
        try:
            yield
        finally:
            if list(folder.iterdir()) == [lock]:
                lock.unlink()
                folder.rmdir()


@dataclasses.dataclass(frozen=True)
class Parts:
    """Finished pieces of one stage: row files and, for scores, array files.

    A piece is written under a temporary name and renamed, so whatever is there is whole.
    Rows are found by their ``mask`` and ``sample_id``.
    """

    folder: Path

    def _files(self, suffix: str) -> list[Path]:
        files = self.folder.glob(f"*{suffix}") if self.folder.is_dir() else ()
        return sorted(f for f in files if not f.name.startswith("."))

    def rows(self) -> list[Row]:
        """All rows written so far, each (mask, sample) once."""
        found: dict[tuple[str, str], Row] = {}
        for file in self._files(".jsonl"):
            for line in file.read_text().splitlines():
                row = json.loads(line)
                found.setdefault((row["mask"], row["sample_id"]), row)
        for file in self._files(".npz"):
            with np.load(file) as data:
                for row in json.loads(str(data["rows"])):
                    found.setdefault((row["mask"], row["sample_id"]), row)
        return list(found.values())

    def _next(self, suffix: str) -> Path:
        files = [f for s in (".jsonl", ".npz") for f in self._files(s)]
        number = 1 + max((int(f.stem) for f in files), default=-1)
        return self.folder / f"{number:06d}{suffix}"

    def add(self, rows: Sequence[Row], arrays: Mapping[str, np.ndarray] | None = None) -> None:
        """Write one piece.

        Args:
            arrays: each with one entry per row on its first axis.
        """
        if arrays is None:
            with whole_file(self._next(".jsonl")) as temporary:
                temporary.write_text("".join(json.dumps(row) + "\n" for row in rows))
            return
        with whole_file(self._next(".npz")) as temporary:
            values: dict[str, Any] = {f"array_{k}": v for k, v in arrays.items()}
            np.savez(temporary, allow_pickle=False, rows=np.array(json.dumps(list(rows))), **values)

    def arrays(self) -> dict[str, dict[str, np.ndarray]]:
        """Array name -> sample id -> its entry."""
        out: dict[str, dict[str, np.ndarray]] = {}
        for file in self._files(".npz"):
            with np.load(file) as data:
                ids = [row["sample_id"] for row in json.loads(str(data["rows"]))]
                for key in data.files:
                    if key.startswith("array_"):
                        entries = zip(ids, data[key], strict=True)
                        out.setdefault(key.removeprefix("array_"), {}).update(entries)
        return out

    def clear(self) -> None:
        """Remove the pieces, after the stage's own file is written."""
        shutil.rmtree(self.folder, ignore_errors=True)
