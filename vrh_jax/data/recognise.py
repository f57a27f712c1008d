"""Which benchmark a file or folder holds, for `vrh data check`."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

from model_ports.errors import UserError
from vrh_jax.data.benchmarks.files import read_objects
from vrh_jax.data.benchmarks.plain_pickle import load_plain_pickle
from vrh_jax.data.benchmarks.tfds_refcoco import CONFIGS, is_prepared
from vrh_jax.data.recognise_questions import recognise_questions

# DATA/tfds/ref_coco/CONFIG/VERSION, and one more.
_DEEPEST = 5
_SPLIT = re.compile(r"_(train|val|testA|testB|test)(?=[._]|$)")
_SHARD = re.compile(r"(.+?)(?:-\d{5}-of-\d{5})?\.parquet")


@dataclasses.dataclass(frozen=True)
class Found:
    """One split of one benchmark, as a task with options."""

    task: str
    options: dict[str, Any]

    @property
    def split(self) -> str:
        """The split, where the options name one."""
        return str(self.options.get("split", ""))


def recognise(path: Path) -> list[Found]:
    """Everything recognised in a file or a folder, in order of names.

    Subfolders are looked into where a folder itself holds nothing that is recognised.

    Raises:
        UserError: nothing was.
    """
    if not path.exists():
        raise UserError(f"{path}: no such file or folder")
    found = _descend(path, _DEEPEST)
    if not found:
        raise UserError(
            f"{path}: no benchmark is recognised here; name it with --task (see `vrh data list`) "
            "and its options with -o KEY=VALUE"
        )
    return found


def _descend(path: Path, depth: int) -> list[Found]:
    found = _folder(path) if path.is_dir() else _file(path)
    found += [Found(task, options) for task, options in recognise_questions(path)]
    if not found and path.is_dir() and depth:
        for below in sorted(p for p in path.iterdir() if p.is_dir()):
            found += _descend(below, depth - 1)
    return found


def _folder(path: Path) -> list[Found]:
    if is_prepared(path):
        return _tfds(path)
    found = []
    for file in sorted(p for p in path.iterdir() if p.is_file() and p.suffix != ".parquet"):
        found += _file(file)
    for folder in (path, path / "data"):
        found += _parquet(sorted(folder.glob("*.parquet")), path)
    for file in sorted(path.glob("*/question.json")):
        found += _file(file)
    return found


def _file(path: Path) -> list[Found]:
    kinds = set(path.suffixes)
    if path.suffix == ".p":
        return _official(path)
    if path.suffix == ".csv":
        head = path.open(errors="replace").readline()
        columns = {"image", "left", "top", "right", "bottom", "question"}
        toloka = columns <= set(head.strip().split(","))
        return [Found("toloka", {"path": path, "split": path.stem})] if toloka else []
    if path.suffix == ".parquet":
        return _parquet([path], path)
    if path.name == "question.json":
        return [Found("refspatial", {"path": path, "split": path.parent.name.lower()})]
    if kinds & {".json", ".jsonl"} and "info" not in path.name and path.name != "instances.json":
        return _rows(path)
    return []


def _rows(path: Path) -> list[Found]:
    try:
        rows = read_objects(path)
    except UserError:
        return []
    keys = set(rows[0]) if rows else set()
    if {"image", "text"} <= keys and ".jsonl" in path.suffixes:
        return [Found("jsonl", {"path": path})]
    if {"img_id", "sents"} <= keys or {"image", "sent"} <= keys or {"image", "solution"} <= keys:
        split = _SPLIT.search(path.name)
        options = {"path": path, "split": split[1] if split else "val"}
        return [Found(_dataset(path), options)]
    return []


def _official(path: Path) -> list[Found]:
    refs = load_plain_pickle(path)
    splits = {r.get("split") for r in refs if isinstance(r, dict)} if isinstance(refs, list) else ()
    return [
        Found(_dataset(path), {"path": path, "split": str(split)})
        for split in sorted(str(s) for s in splits)
    ]


def _tfds(path: Path) -> list[Found]:
    info = json.loads((path / "dataset_info.json").read_text())
    names = {config: dataset for (dataset, _), config in CONFIGS.items()}
    dataset = names.get(info.get("configName", ""))
    if dataset is None:
        return []
    splits = [str(s["name"]) for s in info.get("splits", ())]
    return [
        Found(dataset, {"path": path, "split": "val" if s == "validation" else s}) for s in splits
    ]


def _parquet(files: list[Path], root: Path) -> list[Found]:
    """One entry per split of the files; ``root`` is the path that the task is given."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    found: dict[str, Found] = {}
    for file in files:
        match = _SHARD.fullmatch(file.name)
        if match is None or match[1] in found:
            continue
        try:
            columns = set(pq.read_schema(file).names)
        except (OSError, pa.ArrowException):
            continue
        options = {"path": root, "split": match[1]}
        if {"image", "answer", "bbox", "file_name"} <= columns:
            found[match[1]] = Found(_dataset(file), options)
        elif {"image", "mask", "prompt", "suffix"} <= columns:
            found[match[1]] = Found("refspatial", options)
    return list(found.values())


def _dataset(path: Path) -> str:
    """RefCOCO, + or g, from the name of a file or of the nearest folder that tells."""
    for part in reversed(path.parts):
        plain = part.lower()
        if re.search(r"refcoco[-_]?(\+|plus|p(?![a-z]))", plain):
            return "refcocoplus"
        if "refcoco" in plain:
            return "refcocog" if re.search(r"refcoco[-_]?g", plain) else "refcoco"
    return "refcoco"
