"""RefCOCO, RefCOCO+ and RefCOCOg as tasks of a study, from files in any published layout."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from model_ports.errors import UserError
from vrh_jax.data.benchmarks.files import parquet_files
from vrh_jax.data.benchmarks.refcoco_layouts import (
    read_lmms,
    read_official,
    read_sentence_rows,
    rows_layout,
)
from vrh_jax.data.benchmarks.refs import Per, Ref, Sentence, ref_samples
from vrh_jax.data.benchmarks.tfds_refcoco import CONFIGS, is_prepared, prepared_folder, read_tfds
from vrh_jax.data.images import ImageFolder
from vrh_jax.data.registry import Split, Task
from vrh_jax.data.source import Rows
from vrh_jax.strict import Strict

Dataset = Literal["refcoco", "refcocoplus", "refcocog"]
Partition = Literal["unc", "google", "umd"]
# How folders and files call a dataset.
_NAMES = {
    "refcoco": ("refcoco", "RefCOCO"),
    "refcocoplus": ("refcoco+", "refcocoplus", "refcocop", "RefCOCOplus"),
    "refcocog": ("refcocog", "RefCOCOg"),
}


class RefcocoOptions(Strict):
    """Options of the tasks ``refcoco``, ``refcocoplus`` and ``refcocog``."""

    path: Path = Field(
        description="annotations: a file, or a folder with files of a published layout"
    )
    images: Path | None = Field(
        None, description="folder of COCO's train2014 images; default: beside the annotations"
    )
    split: str = Field("val", description="train, val, test, testA or testB")
    partitions: tuple[Partition, ...] | None = Field(
        None,
        description="who split the objects, for files with several; default unc (RefCOCO, "
        "RefCOCO+) or umd (RefCOCOg); [unc, google] gives the rows of lmms-lab/RefCOCO",
    )
    per: Per = Field(
        "sentence",
        description="a sample per sentence, or per ref (object) with its first sentence",
    )
    wording: Literal["sent", "raw"] = Field(
        "sent", description="official layout: the cleaned sentence or the raw one"
    )
    layout: Literal["auto", "official", "tfds", "lmms", "minigpt4", "jsonl", "vlm-r1"] = Field(
        "auto", description="layout of the files; default: recognised by names and keys"
    )
    plus_one: bool = Field(
        False,
        description="boxes of jsonl or vlm-r1 files end at x + w + 1, y + h + 1, as in some "
        "files of VLM-R1; `vrh data check` tells",
    )


def load_refcoco(dataset: Dataset, options: RefcocoOptions) -> Rows[tuple[Ref, Sentence]]:
    """All samples of a split, in the order of the files.

    Raises:
        UserError: no files of a known layout, or a row that is not as its layout says.
    """
    layout, files = find_files(dataset, options)
    if options.plus_one and layout not in ("jsonl", "vlm-r1"):
        raise UserError(f"plus_one is for jsonl and vlm-r1 files; {files[0]} is {layout}")
    refs = [ref for group in _groups(layout, files) for ref in _read(layout, group, options)]
    base = options.path if options.path.is_dir() else options.path.parent
    return ref_samples(refs, ImageFolder(options.images or base), options.per)


def _groups(layout: str, files: list[Path]) -> list[list[Path]]:
    """Files that are read together: the shards of a Parquet split, else one at a time."""
    return [files] if layout == "lmms" else [[file] for file in files]


def _read(layout: str, files: list[Path], options: RefcocoOptions) -> list[Ref]:
    if layout == "official":
        return read_official(files[0], options.split, options.wording)
    if layout == "tfds":
        return read_tfds(files[0], "validation" if options.split == "val" else options.split)
    if layout == "lmms":
        return read_lmms(files)
    return read_sentence_rows(files[0], layout, plus_one=options.plus_one)


def find_files(dataset: Dataset, options: RefcocoOptions) -> tuple[str, list[Path]]:
    """(layout, its files or folders) that the options name.

    Raises:
        UserError: nothing of the asked layout is there; the message lists what was looked for.
    """
    path, wanted = options.path, options.layout
    if not path.exists():
        raise UserError(
            f"{path}: no such file or folder; `vrh data get {dataset}` says what to place there"
        )
    for layout, find in (("official", _official), ("tfds", _tfds), ("lmms", _lmms)):
        files = find(dataset, options) if wanted in ("auto", layout) else []
        if files:
            return layout, files
    rows = _rows(dataset, options) if wanted in ("auto", "minigpt4", "jsonl", "vlm-r1") else []
    if rows:
        return (rows_layout(rows[0]) if wanted == "auto" else wanted), rows
    names = "|".join(_NAMES[dataset])
    raise UserError(
        f"{path}: no annotations of {dataset} ({options.split}, "
        f"{'+'.join(_partitions(dataset, options))}) in the layout {wanted!r}; looked for "
        "refs(PARTITION).p with instances.json, TFDS's prepared ref_coco, "
        f"{options.split}-*.parquet, and ({names})_{options.split}.json[l][.gz]"
    )


def _partitions(dataset: Dataset, options: RefcocoOptions) -> tuple[Partition, ...]:
    return options.partitions or (("umd",) if dataset == "refcocog" else ("unc",))


def _official(dataset: Dataset, options: RefcocoOptions) -> list[Path]:
    path = options.path
    if path.is_file():
        return [path] if path.suffix == ".p" else []
    names = _NAMES[dataset]
    for folder in (path, *(path / n for n in names), *(path / "data" / n for n in names)):
        files = [folder / f"refs({p}).p" for p in _partitions(dataset, options)]
        there = [file for file in files if file.is_file()]
        if there and len(there) < len(files):
            raise UserError(f"{folder}: {set(files).difference(there).pop().name} is missing")
        if there:
            return there
    return []


def _tfds(dataset: Dataset, options: RefcocoOptions) -> list[Path]:
    if is_prepared(options.path):
        return [options.path]
    folders = []
    for partition in _partitions(dataset, options):
        config = CONFIGS.get((dataset, partition))
        folder = prepared_folder(options.path, config) if config else None
        if folder is not None:
            folders.append(folder)
    return folders


def _lmms(dataset: Dataset, options: RefcocoOptions) -> list[Path]:
    path = options.path
    if path.is_file():
        return [path] if path.suffix == ".parquet" else []
    for folder in (path, *(path / n for n in _NAMES[dataset])):
        if any(folder.glob(f"**/{options.split}*.parquet")):
            return parquet_files(folder, options.split)
    return []


def _rows(dataset: Dataset, options: RefcocoOptions) -> list[Path]:
    path = options.path
    if path.is_file():
        return [path] if path.suffix not in (".p", ".parquet") else []
    for name in _NAMES[dataset]:
        for end in ("json", "jsonl", "json.gz", "jsonl.gz"):
            file = path / f"{name}_{options.split}.{end}"
            if file.is_file():
                return [file]
    return []


def _task(dataset: Dataset) -> Task:
    def load(options: RefcocoOptions, _split: Split, _count: int) -> Rows[tuple[Ref, Sentence]]:
        return load_refcoco(dataset, options)

    return Task(options=RefcocoOptions, load=load, generated=False)


TASKS = {name: _task(name) for name in ("refcoco", "refcocoplus", "refcocog")}
