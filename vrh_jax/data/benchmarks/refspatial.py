"""RefSpatial-Bench as grounding: the box is the bounding box of the mask's pixels above 0.

BAAI/RefSpatial-Bench (Apache-2.0) asks for points and scores whether they lie in the mask; it
has no boxes. ``mask > 0`` is the official reading of its masks (RoboRefer, summarize_acc.py),
which differs from rounding where edges are soft. Two layouts: ``location-*.parquet`` of the
hub, and the folders ``Location/question.json`` with images and masks.
"""

import dataclasses
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image
from pydantic import Field

from model_ports.errors import UserError
from vrh_jax.data.benchmarks.files import parquet_files, read_objects, read_parquet
from vrh_jax.data.benchmarks.refs import Box
from vrh_jax.data.images import FileImage, ImageRef, content_key, stored_size
from vrh_jax.data.registry import Split, Task
from vrh_jax.data.sample import Sample
from vrh_jax.data.source import Key, Rows
from vrh_jax.strict import Strict

TEXTS = ("object", "prompt")


class RefSpatialOptions(Strict):
    """Options of the task ``refspatial``."""

    path: Path = Field(description="folder of the dataset, or one of its files")
    split: Literal["location", "placement", "unseen"] = Field(
        "location", description="location or placement (100 samples each) or unseen (77)"
    )
    text: Literal["object", "prompt"] = Field(
        "object", description="what is asked for: the object's description, or the whole prompt"
    )


@dataclasses.dataclass(frozen=True)
class _Row:
    number: int
    image: ImageRef
    mask: ImageRef
    raw: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class _Loader:
    """Makes samples of rows; the mask is decoded for its box, the image is not."""

    file: str
    split: str
    text: str

    def key(self, row: _Row) -> Key:
        name = f"{self.split}-{row.raw.get('id', row.number)}"
        # Several questions share an image, and each has its own copy of the file.
        return Key(f"refspatial-{content_key(row.image) or name}", name, "grounding", located=True)

    def sample(self, row: _Row) -> Sample:
        key = self.key(row)
        size = stored_size(row.image)
        return Sample(
            id=key.id,
            kind="grounding",
            text=str(row.raw[self.text]),
            image=row.image,
            image_size=size,
            box=mask_box(row.mask, f"{self.file}, row {row.number}", size),
            answer="",
            image_id=key.image_id,
            group=key.image_id,
            category=f"step {row.raw['step']}" if "step" in row.raw else "",
            source=f"{self.file}#{row.number}",
            row=row.raw,
        )


def mask_box(mask: ImageRef, where: str, size: tuple[int, int]) -> Box:
    """Half-open box around the pixels above 0 in any channel but transparency.

    Args:
        size: of the image; the mask must have the same, unless the image is unreadable.

    Raises:
        UserError: the mask cannot be read, is empty, or has another size.
    """
    try:
        with mask.open() as opened:
            values = np.asarray(_opaque(opened))
    except UserError:
        raise
    except Exception as error:  # Pillow raises many types on broken files
        raise UserError(f"{where}: its mask cannot be read ({error})") from error
    inside = np.any(values.reshape(*values.shape[:2], -1) > 0, axis=2)
    height, width = values.shape[:2]
    if size not in ((0, 0), (width, height)):
        raise UserError(f"{where}: the mask is {width}x{height}, but the image {size[0]}x{size[1]}")
    rows, columns = (np.flatnonzero(inside.any(axis=axis)) for axis in (1, 0))
    if not len(rows):
        raise UserError(f"{where}: the mask has no pixel above 0, so there is no box")
    return (float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1))


def _opaque(mask: Image.Image) -> Image.Image:
    """Without the channel of transparency, and with a palette's colours looked up."""
    without = {"LA": "L", "RGBA": "RGB", "P": "RGB", "PA": "RGB", "1": "L"}
    return mask.convert(without[mask.mode]) if mask.mode in without else mask


def load(options: RefSpatialOptions, _split: Split, _count: int) -> Rows[_Row]:
    """All samples of a split.

    Raises:
        UserError: no files of either layout, or a row without its keys.
    """
    path, split = options.path, options.split
    for folder in (path / split, path / split.capitalize(), path):
        question = path if path.suffix == ".json" else folder / "question.json"
        if question.is_file():
            rows = _raw_rows(question)
            break
    else:
        files = parquet_files(path, split)
        question = files[0]
        table = read_parquet(files, columns=TEXTS, images=("image", "mask"))
        rows = [_parquet_row(number, raw) for number, raw in enumerate(table)]
    return Rows(rows, _Loader(str(question), split, options.text))


def _parquet_row(number: int, raw: dict[str, Any]) -> _Row:
    plain = {k: v for k, v in raw.items() if k not in ("image", "mask")}
    return _Row(number, raw["image"], raw["mask"], plain)


def _raw_rows(question: Path) -> list[_Row]:
    rows, folder = [], question.parent
    for number, raw in enumerate(read_objects(question)):
        for key in TEXTS:
            if key not in raw:
                raise UserError(f"{question}, entry {number}: key {key!r} is missing")
        name = f"{raw.get('id', number)}.png"
        image = _inside(folder, str(raw.get("rgb_path") or f"image/{name}"))
        mask = _inside(folder, str(raw.get("mask_path") or f"mask/{name}"))
        rows.append(_Row(number, image, mask, raw))
    return rows


def _inside(folder: Path, name: str) -> FileImage:
    """A path relative to the split's folder, or to the one above it."""
    above = folder.parent / name
    return FileImage(above if above.is_file() and not (folder / name).is_file() else folder / name)


TASK = Task(options=RefSpatialOptions, load=load, generated=False)
