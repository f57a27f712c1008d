"""The layouts in which RefCOCO, RefCOCO+ and RefCOCOg are published, each as a list of refs.

| layout | files | rows | boxes |
|---|---|---|---|
| official | ``refs(unc).p`` and ``instances.json`` (lichengunc/refer) | refs | xywh |
| tfds | ``ref_coco`` prepared by TFDS | images | yxyx in 0-1, float32 |
| lmms | ``val-*.parquet`` with the images (lmms-lab/RefCOCO, RefCOCOplus, RefCOCOg) | refs | xywh |
| minigpt4 | ``refcoco_val.json`` with ``img_id``, ``sents`` | sentences | xywh |
| jsonl | ``refcoco_val.jsonl`` with ``image``, ``sent`` (Qwen-VL, InternVL) | sentences | xyxy |
| vlm-r1 | ``refcoco_val.json`` with ``image``, ``solution`` | sentences | xyxy, often x + w + 1 |
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from model_ports.errors import UserError
from vrh_jax.data.benchmarks.files import read_json, read_objects, read_parquet
from vrh_jax.data.benchmarks.plain_pickle import load_plain_pickle
from vrh_jax.data.benchmarks.refs import Box, Ref, Sentence, box_xywh, box_xyxy
from vrh_jax.data.images import image_key

Wording = Literal["sent", "raw"]


def read_official(refs_file: Path, split: str, wording: Wording) -> list[Ref]:
    """Refs of one partition; ``refs_file`` is ``refs(unc).p`` beside ``instances.json``.

    Args:
        split: as in the file: train, val, test, testA, testB.
        wording: ``sent``, the cleaned sentence that evaluations use, or ``raw``.
    """
    instances_file = refs_file.with_name("instances.json")
    instances = read_json(instances_file)
    try:
        boxes = {a["id"]: a["bbox"] for a in instances["annotations"]}
        sizes = {i["id"]: (int(i["width"]), int(i["height"])) for i in instances["images"]}
    except (TypeError, KeyError) as error:
        raise UserError(
            f"{instances_file}: expected COCO's 'images' and 'annotations' ({error!r})"
        ) from None
    found = re.search(r"\((\w+)\)", refs_file.name)
    partition = found[1] if found else refs_file.stem
    raw = load_plain_pickle(refs_file)
    if not isinstance(raw, list):
        raise UserError(f"{refs_file}: expected a list of refs, found {type(raw).__name__}")
    splits: set[str] = set()
    refs = []
    for row, ref in enumerate(raw):
        where = f"{refs_file}, ref {row}"
        try:
            splits.add(ref["split"])
            if ref["split"] != split:
                continue
            name = f"{partition}-{ref['ref_id']}"
            sentences = tuple(
                Sentence(f"{name}/{s['sent_id']}", s[wording], row) for s in ref["sentences"]
            )
            box = box_xywh(boxes[ref["ann_id"]], f"{where}: annotation {ref['ann_id']}")
            size, file_name = sizes[ref["image_id"]], ref["file_name"]
        except (TypeError, KeyError) as error:
            raise UserError(
                f"{where}: {error!r} is not in it or not in {instances_file.name}; are both "
                "files of one dataset?"
            ) from None
        if not all(isinstance(text, str) for text in (file_name, *(s.text for s in sentences))):
            raise UserError(f"{where}: expected texts as 'file_name' and {wording!r}")
        refs.append(
            Ref(name, file_name, image_key(file_name), size, box, sentences, str(refs_file), ref)
        )
    if not refs:
        raise UserError(
            f"{refs_file}: no ref is in split {split!r}; its splits are {sorted(splits)}"
        )
    return refs


def read_lmms(files: Sequence[Path]) -> list[Ref]:
    """Rows of the Parquet sets of lmms-lab; question ids repeat there, so row numbers are ids."""
    columns = ("answer", "bbox", "file_name")
    refs = []
    for row, raw in enumerate(read_parquet(files, columns=columns, images=("image",))):
        where = f"{files[0].parent}, row {row}"
        said = raw["answer"] if isinstance(raw["answer"], list) else [raw["answer"]]
        if not all(isinstance(text, str) for text in said):
            raise UserError(f"{where}: answer = {raw['answer']!r}; expected its sentences")
        refs.append(
            Ref(
                id=f"row-{row}",
                image=raw["image"],
                image_id=image_key(str(raw["file_name"])),
                size=(0, 0),
                box=box_xywh(raw["bbox"], where),
                sentences=tuple(
                    Sentence(f"row-{row}/{i}", str(text), row) for i, text in enumerate(said)
                ),
                file=str(files[0].parent),
                row={k: v for k, v in raw.items() if k not in ("image", "segmentation")},
            )
        )
    return refs


def read_sentence_rows(file: Path, layout: str, *, plus_one: bool) -> list[Ref]:
    """Files with one sentence per row; rows of one object become one ref.

    Args:
        layout: minigpt4, jsonl or vlm-r1.
        plus_one: corners are x + width + 1 and y + height + 1 (om-ai-lab/VLM-R1 issue 11).
    """
    read = _ROWS[layout]
    # Two refs may share a box; in MiniGPT-4's rows the image's suffix tells them apart.
    grouped: dict[tuple[str, Box], list[Sentence]] = {}
    first: dict[tuple[str, Box], dict[str, Any]] = {}
    for number, row in enumerate(read_objects(file)):
        where = f"{file}, entry {number}"
        try:
            image, text, box = read(row, where)
        except KeyError as error:
            raise UserError(f"{where}: key {error} is missing; it has {sorted(row)}") from None
        if not isinstance(text, str):
            raise UserError(f"{where}: the sentence is {text!r}")
        first.setdefault((image, box), row)
        grouped.setdefault((image, box), []).append(Sentence(f"row-{number}", text, number))
    extra = 1 if plus_one else 0
    return [
        Ref(
            id=f"{Path(image).stem}-{sentences[0].row}",
            image=image,
            image_id=image_key(image),
            size=_size(first[image, box]),
            box=(box[0], box[1], box[2] - extra, box[3] - extra),
            sentences=tuple(sentences),
            file=str(file),
            row=first[image, box],
        )
        for (image, box), sentences in grouped.items()
    ]


def rows_layout(file: Path) -> str:
    """The layout of a file with one sentence per row, from the keys of its first row."""
    rows = read_objects(file)
    keys = set(rows[0]) if rows else set()
    for layout, expected in (
        ("minigpt4", {"img_id", "sents", "bbox"}),
        ("vlm-r1", {"image", "solution"}),
        ("jsonl", {"image", "sent", "bbox"}),
    ):
        if expected <= keys:
            return layout
    raise UserError(
        f"{file}: the keys {sorted(keys)} of its first row fit no known layout of RefCOCO: "
        "{img_id, sents, bbox}, {image, sent, bbox} or {image, solution}"
    )


def _minigpt4(row: dict[str, Any], where: str) -> tuple[str, Any, Box]:
    return str(row["img_id"]), row["sents"], box_xywh(row["bbox"], where)


def _jsonl(row: dict[str, Any], where: str) -> tuple[str, Any, Box]:
    return str(row["image"]), row["sent"], box_xyxy(row["bbox"], where)


def _vlm_r1(row: dict[str, Any], where: str) -> tuple[str, Any, Box]:
    text = row["normal_caption"] if "normal_caption" in row else row["problem"]
    return str(row["image"]), text, box_xyxy(row["solution"], where)


_ROWS: dict[str, Callable[[dict[str, Any], str], tuple[str, Any, Box]]] = {
    "minigpt4": _minigpt4,
    "jsonl": _jsonl,
    "vlm-r1": _vlm_r1,
}


def _size(row: dict[str, Any]) -> tuple[int, int]:
    width, height = row.get("width"), row.get("height")
    if isinstance(width, int) and isinstance(height, int):
        return (width, height)
    return (0, 0)
