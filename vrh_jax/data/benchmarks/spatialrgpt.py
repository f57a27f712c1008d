"""SpatialRGPT-Bench, sizes of objects (a8cheng/SpatialRGPT-Bench, Apache-2.0).

The questions speak of "Region [0]", which SpatialRGPT gets as a mask. How other models were shown
the regions was never published (AnjieCheng/SpatialRGPT, issue 33), so it is an option here.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from PIL import Image, ImageDraw, ImageFont
from pydantic import Field

from model_ports.errors import UserError
from vrh_jax.data.benchmarks.files import as_list, as_object
from vrh_jax.data.benchmarks.questions import (
    Box,
    Question,
    QuestionOptions,
    questions,
)
from vrh_jax.data.benchmarks.records import Record, pick, read_records
from vrh_jax.data.benchmarks.refs import box_xyxy
from vrh_jax.data.images import ImageRef
from vrh_jax.data.registry import Split, Task
from vrh_jax.data.source import Rows

Category = Literal["width_data", "height_data"]
CATEGORIES: tuple[Category, ...] = ("width_data", "height_data")
Marks = Literal["box", "mark", "none"]
# Distinct on photographs, also for readers with colour blindness (Okabe and Ito).
_COLORS = ("#D55E00", "#0072B2", "#F0E442", "#009E73", "#CC79A7")
_REGION = re.compile(r"Region \[(\d+)\]")
_METRES = {
    "millimet": 0.001, "centimet": 0.01, "met": 1.0, "inch": 0.0254, "feet": 0.3048,
    "foot": 0.3048, "cm": 0.01, "mm": 0.001, "ft": 0.3048, "in": 0.0254, "m": 1.0,
}  # fmt: skip
_TRUTH = re.compile(
    rf"(\d+(?:\.\d+)?|\.\d+)\s*({'|'.join(_METRES)})(?:er|re)?(?:es|s)?\b", re.IGNORECASE
)


class SpatialRgptOptions(QuestionOptions):
    """Options of the task ``spatialrgpt``."""

    marks: Marks = Field(
        "box",
        description="how regions are shown: 'box' draws each with its name, 'mark' its number "
        "in the middle, 'none' leaves the image as it is",
    )
    categories: tuple[Category, ...] = Field(
        CATEGORIES, min_length=1, description="which sizes are asked"
    )


@dataclasses.dataclass(frozen=True)
class MarkedImage:
    """An image with its regions drawn on it when it is decoded; the size stays.

    Attributes:
        boxes: region number -> box in stored pixels, by place.
    """

    image: ImageRef
    boxes: tuple[Box, ...]
    marks: Marks

    def __call__(self) -> Image.Image:
        """The RGB image with its regions."""
        return draw_regions(self.image(), self.boxes, self.marks)

    def open(self) -> Image.Image:
        """The image without its regions, for its header."""
        return self.image.open()

    def read(self) -> bytes:
        """The encoded image without its regions."""
        return self.image.read()


def load(options: SpatialRgptOptions, _split: Split, _count: int) -> Rows[Question]:
    """The questions about widths and heights of SpatialRGPT-Bench_v1.json (or its Parquet)."""
    path = pick(options.path, ("SpatialRGPT-Bench_v1.json", "*.json", "*.jsonl", "*.parquet"))
    records = read_records(
        path,
        columns=("id", "text_q", "bbox", "qa_info", "conversations"),
        name="image_info",
        images=options.images,
        keep=lambda row: _category(row) in options.categories,
    )
    if not records:
        raise UserError(f"{path}: no question of the categories {', '.join(options.categories)}")
    return questions([_question(record, options.marks) for record in records])


TASK = Task(options=SpatialRgptOptions, load=load, generated=False)


def _category(row: Mapping[str, Any]) -> str:
    return str(as_object(row["qa_info"], f"entry {row['id']}: qa_info").get("category", ""))


def _question(record: Record, marks: Marks) -> Question:
    row: dict[str, Any] = dict(record.row)
    text, info = (
        record.text("text_q"),
        as_object(row.get("image_info"), f"{record.source}: image_info"),
    )
    size = (int(info.get("width") or 0), int(info.get("height") or 0))
    boxes = tuple(
        _clamped(box, size, record.source) for box in as_list(row["bbox"], f"{record.source}: bbox")
    )
    region = _REGION.search(text)
    number = int(region[1]) if region else 0
    if number >= len(boxes):
        raise UserError(f"{record.source}: {text!r} names a region without a box")
    box = boxes[number]
    image = record.picture()
    return Question(
        id=str(row["id"]),
        kind="number",
        text=text,
        answer=repr(true_metres(row["conversations"], record.source)),
        image=image if marks == "none" else MarkedImage(image, boxes, marks),
        image_id=f"omni3d-{info.get('file_path') or row['id']}",
        source=record.source,
        rule="spatialrgpt",
        category=_category(row),
        box=box if box[0] < box[2] and box[1] < box[3] else None,
        unit="m",
        size=size,
        row={k: v for k, v in row.items() if k != "rle"},
    )


def true_metres(conversations: Any, source: str) -> float:
    """The true size in metres, from the answer of the conversation.

    Raises:
        UserError: no length with a unit in it.
    """
    said = as_list(conversations, f"{source}: conversations")
    turns = [turn for turn in said if isinstance(turn, dict)]
    answers = [str(turn.get("value")) for turn in turns if turn.get("from") != "human"]
    found = _TRUTH.search(_REGION.sub(" ", answers[0])) if answers else None
    if found is None or not float(found[1]):
        raise UserError(f"{source}: the answer {answers[:1]} holds no length with a unit")
    return float(found[1]) * _METRES[found[2].lower()]


def _clamped(raw: Any, size: tuple[int, int], source: str) -> Box:
    """A box cut to its image, as the official evaluation does."""
    x0, y0, x1, y1 = box_xyxy(raw, source)
    if size == (0, 0):
        return x0, y0, x1, y1
    width, height = size
    return min(max(x0, 0), width), min(max(y0, 0), height), min(max(x1, 0), width), min(
        max(y1, 0), height
    )  # fmt: skip


def draw_regions(image: Image.Image, boxes: Sequence[Box], marks: Marks) -> Image.Image:
    """A copy with every region's outline and name, or its number in its middle."""
    drawn = image.copy()
    pen = ImageDraw.Draw(drawn)
    short = min(image.size)
    width, font = max(2, short // 200), ImageFont.load_default(size=max(10, short // 28))
    for i, (x0, y0, x1, y1) in enumerate(boxes):
        color = _COLORS[i % len(_COLORS)]
        if marks == "box":
            pen.rectangle((x0, y0, max(x0, x1 - 1), max(y0, y1 - 1)), outline=color, width=width)
            _label(pen, (x0, y0), f"Region [{i}]", color, font, image.size)
        else:
            middle = ((x0 + x1) / 2, (y0 + y1) / 2)
            _label(pen, middle, str(i), color, font, image.size)
    return drawn


def _label(
    pen: ImageDraw.ImageDraw,
    place: tuple[float, float],
    text: str,
    color: str,
    font: Any,
    size: tuple[int, int],
) -> None:
    """White on the region's colour, kept inside the image."""
    left, top, right, bottom = pen.textbbox((0, 0), text, font=font)
    width, height = right - left + 4, bottom - top + 4
    x = min(max(place[0], 0), max(size[0] - width, 0))
    y = min(max(place[1], 0), max(size[1] - height, 0))
    pen.rectangle((x, y, x + width, y + height), fill=color)
    pen.text((x + 2 - left, y + 2 - top), text, fill="white", font=font)
