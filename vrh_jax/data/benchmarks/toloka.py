"""Toloka VQA (WSDM Cup 2023): a question whose answer is the box of an object.

CSV with image (URL), width, height, left, top, right, bottom (whole pixels of the stored image)
and question; Toloka/WSDMCup2023, CC BY 4.0. The images are of COCO.
"""

import dataclasses
from pathlib import Path

from pydantic import Field

from model_ports.errors import UserError
from vrh_jax.data.benchmarks.files import as_whole, read_csv
from vrh_jax.data.benchmarks.refs import Box
from vrh_jax.data.images import ImageFolder, image_key
from vrh_jax.data.registry import Split, Task
from vrh_jax.data.sample import Sample
from vrh_jax.data.source import Key, Rows
from vrh_jax.strict import Strict

COLUMNS = ("image", "width", "height", "left", "top", "right", "bottom", "question")


class TolokaOptions(Strict):
    """Options of the task ``toloka``."""

    path: Path = Field(description="the CSV file, e.g. test_public.csv, or its folder")
    images: Path | None = Field(None, description="folder of the images; default: the CSV's")
    split: str = Field("test_public", description="name of the CSV in the folder, without .csv")


@dataclasses.dataclass(frozen=True)
class _Row:
    number: int
    image: str
    size: tuple[int, int]
    box: Box
    raw: dict[str, str]


@dataclasses.dataclass(frozen=True)
class _Loader:
    """Makes samples of rows."""

    path: Path
    folder: ImageFolder

    def key(self, row: _Row) -> Key:
        return Key(image_key(row.image), f"row-{row.number}", "grounding", located=True)

    def sample(self, row: _Row) -> Sample:
        key = self.key(row)
        return Sample(
            id=key.id,
            kind="grounding",
            text=row.raw["question"],
            image=self.folder.find(row.image),
            image_size=row.size,
            box=row.box,
            answer="",
            image_id=key.image_id,
            group=key.image_id,
            source=f"{self.path}#{row.number}",
            row=row.raw,
        )


def load(options: TolokaOptions, _split: Split, _count: int) -> Rows[_Row]:
    """All rows of the file.

    Raises:
        UserError: no such file, a missing column, or a field that is no whole number.
    """
    path = options.path
    if path.is_dir():
        path /= f"{options.split}.csv"
    rows = [_row(number, raw, path) for number, raw in enumerate(read_csv(path, COLUMNS))]
    return Rows(rows, _Loader(path, ImageFolder(options.images or path.parent)))


def _row(number: int, raw: dict[str, str], path: Path) -> _Row:
    values = []
    for name in COLUMNS[1:-1]:
        try:
            values.append(as_whole(raw[name], name))
        except UserError:
            hidden = " (an early test_public.csv hides the boxes)" if not raw[name] else ""
            raise UserError(
                f"{path}, row {number}: {name} = {raw[name]!r}; expected whole pixels{hidden}"
            ) from None
    width, height, *sides = values
    left, top, right, bottom = (float(v) for v in sides)
    return _Row(number, raw["image"], (width, height), (left, top, right, bottom), raw)


TASK = Task(options=TolokaOptions, load=load, generated=False)
