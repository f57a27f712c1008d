"""RefCOCO in its published layouts, small and synthetic, and Python 2 pickles to hold it."""

import io
import json
import struct
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

SIZES = {11: (64, 48), 12: (48, 64), 13: (70, 40), 14: (64, 48)}
# ref_id, image, split, box xywh, sentences (cleaned, raw)
REFS = [
    (1, 11, "val", [1.5, 2.25, 30.0, 20.5], [("left cup", "Left cup!"), ("wcarrots", "w/carrots")]),
    (2, 11, "val", [40.0, 8.0, 24.0, 40.0], [("left cup", "left cup")]),
    (3, 12, "val", [0.0, 0.0, 48.0, 64.0], [("purée", "purée"), ("purée", "purée")]),
    (4, 13, "testA", [5.0, 6.0, 7.0, 8.0], [("guyin black", "guyin black")]),
    (5, 14, "train", [1.0, 1.0, 9.0, 9.0], [("a dog", "a dog")]),
]
GOOGLE = [
    (1, 11, "val", [1.5, 2.25, 30.0, 20.5], [("left cup", "Left cup!")]),
    (9, 14, "val", [2.0, 2.0, 9.0, 9.0], [("a cat", "a cat")]),
]


def file_name(image, suffix=""):
    return f"COCO_train2014_{image:012d}{suffix}.jpg"


def py2_pickle(value, protocol=2):
    """What Python 2's pickle writes: text as byte strings, integers without types."""
    out = io.BytesIO()
    if protocol == 2:
        out.write(b"\x80\x02")
    _write(value, out, protocol)
    return out.getvalue() + b"."


def _write(value, out, protocol):
    if isinstance(value, bytes):
        if protocol == 2:
            out.write(b"T" + struct.pack("<i", len(value)) + value)
        else:
            out.write(b"S" + repr(value)[1:].encode() + b"\n")
    elif isinstance(value, str):
        _write(value.encode(), out, protocol)
    elif isinstance(value, list):
        _write_all(value, out, protocol, b"l")
    elif isinstance(value, dict):
        _write_all([part for item in value.items() for part in item], out, protocol, b"d")
    elif isinstance(value, float):
        out.write(b"G" + struct.pack(">d", value) if protocol == 2 else b"F%r\n" % value)
    elif value is None or isinstance(value, bool):
        out.write({True: b"I01\n", False: b"I00\n", None: b"N"}[value])
    else:
        out.write(b"L%dL\n" % value if abs(value) > 2**31 else b"I%d\n" % value)


def _write_all(items, out, protocol, end):
    out.write(b"(")
    for item in items:
        _write(item, out, protocol)
    out.write(end)


def write_images(folder: Path, *, skip=()):
    folder.mkdir(parents=True, exist_ok=True)
    for image, size in SIZES.items():
        if image not in skip:
            Image.new("RGB", size, (image, 100, 200)).save(folder / file_name(image))


def official_refs(refs):
    sentence = iter(range(100))
    return [
        {
            "ref_id": ref, "ann_id": 100 + ref, "category_id": 1, "image_id": image,
            "file_name": file_name(image, f"_{ref}"), "split": split,
            "sentences": [
                {"sent": sent, "raw": raw, "sent_id": next(sentence), "tokens": sent.split()}
                for sent, raw in said
            ],
        }
        for ref, image, split, _, said in refs
    ]  # fmt: skip


def write_official(folder: Path, *, unc=2, google=0):
    """``refs(unc).p``, ``refs(google).p`` (pickle protocols as given) and ``instances.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "refs(unc).p").write_bytes(py2_pickle(official_refs(REFS), unc))
    (folder / "refs(google).p").write_bytes(py2_pickle(official_refs(GOOGLE), google))
    boxes = {100 + ref: box for ref, _, _, box, _ in REFS + GOOGLE}
    instances = {
        "images": [{"id": i, "width": w, "height": h} for i, (w, h) in SIZES.items()],
        "annotations": [{"id": i, "bbox": box} for i, box in boxes.items()],
    }
    (folder / "instances.json").write_text(json.dumps(instances))
    return folder


def sentence_rows(layout, split="val", *, plus_one=False):
    """Rows of MiniGPT-4, of Qwen-VL and InternVL (jsonl), or of VLM-R1."""
    rows = []
    for ref, image, at, (x, y, w, h), said in REFS:
        size = dict(zip(("width", "height"), SIZES[image], strict=True))
        corners = [x, y, x + w + plus_one, y + h + plus_one]
        for sent, _ in said if at == split else ():
            rows.append(
                {
                    "minigpt4": {
                        "img_id": f"COCO_train2014_{image:012d}_{ref}", "sents": sent,
                        "bbox": [x, y, w, h], **size,
                    },
                    "jsonl": {
                        "image": f"data/coco/train2014/{file_name(image)}", "sent": sent,
                        "bbox": corners, **size,
                    },
                    "vlm-r1": {
                        "image": f"coco/train2014/{file_name(image)}", "normal_caption": sent,
                        "problem": f"Where is {sent}?", "solution": corners, **size,
                    },
                }[layout]
            )  # fmt: skip
    return rows


def write_parquet(folder: Path, images: Path, split="val", shards=2):
    """The layout of lmms-lab: one row per ref, with the image's bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    refs = [r for r in REFS if r[2] == split]
    table = pa.table(
        {
            "question_id": [str(i % 2) for i in range(len(refs))],
            "image": [
                {"bytes": (images / file_name(image)).read_bytes(), "path": None}
                for _, image, *_ in refs
            ],
            "answer": [[sent for sent, _ in said] for *_, said in refs],
            "bbox": pa.array([box for *_, box, _ in refs], pa.list_(pa.float32())),
            "file_name": [file_name(image, f"_{ref}") for ref, image, *_ in refs],
            "segmentation": [[1.0, 2.0]] * len(refs),
        }
    )
    size = -(-len(refs) // shards)
    for shard in range(shards):
        name = f"{split}-{shard:05d}-of-{shards:05d}.parquet"
        part = table.slice(shard * size, size)
        pq.write_table(part, folder / name, row_group_size=1)
    return folder


def boxes(split="val"):
    """(image id, sentence, corners) of a split, in order."""
    return [
        (f"coco-{image}", sent, (x, y, x + w, y + h))
        for _, image, at, (x, y, w, h), said in REFS
        for sent, _ in (said if at == split else ())
    ]
