"""References to images: small, picklable, decoded when called on a worker thread.

Pixels come from ``model_ports.images.decode``: every mode becomes RGB in the same way, and the
EXIF orientation tag is ignored, since boxes are annotated in the pixels as they are stored.
"""

import dataclasses
import functools
import hashlib
import io
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from PIL import Image

from model_ports.errors import UserError
from model_ports.images.decode import load_image, reason_of

# Where COCO images lie below the folder that people name.
_FOLDERS = ("", "train2014", "val2014", "train2017", "val2017", "coco_train2014", "images",
            "coco/train2014", "coco/train2017")  # fmt: skip
# RefCOCO's file names end in the index of the object (COCO_train2014_000000581857_16.jpg).
_COCO = re.compile(r"(COCO_(?:train|val|test)\d{4}_)?(\d{12})(?:_\d+)?(?:\.(?:jpe?g|png))?")
_SUFFIX = re.compile(r"(COCO_(?:train|val|test)\d{4}_\d{12})_\d+")


class ImageRef(Protocol):
    """An image that can be read when it is needed."""

    def __call__(self) -> Image.Image:
        """The RGB image; UserError with the reason if it cannot be read."""

    def open(self) -> Image.Image:
        """The image with its header read, but not decoded; any error of Pillow or the system."""

    def read(self) -> bytes:
        """The encoded image; any error of the system."""


@dataclasses.dataclass(frozen=True)
class FileImage:
    """An image file."""

    path: Path

    def __call__(self) -> Image.Image:
        return load_image(self.path)

    def open(self) -> Image.Image:
        return Image.open(self.path)

    def read(self) -> bytes:
        return self.path.read_bytes()


@dataclasses.dataclass(frozen=True)
class BytesImage:
    """An encoded image in memory; ``name`` is how messages call it."""

    data: bytes
    name: str = ""

    def __call__(self) -> Image.Image:
        return load_image(self.data, self.name)

    def open(self) -> Image.Image:
        return Image.open(io.BytesIO(self.data))

    def read(self) -> bytes:
        return self.data


@dataclasses.dataclass(frozen=True)
class ParquetImage:
    """One cell of an image column of a Parquet file (Hugging Face ``Image``, or plain bytes).

    Attributes:
        group, row: row group, and row within it.
    """

    path: Path
    column: str
    group: int
    row: int

    def __call__(self) -> Image.Image:
        return self._cell()()

    def open(self) -> Image.Image:
        return self._cell().open()

    def read(self) -> bytes:
        return self._cell().read()

    def _cell(self) -> FileImage | BytesImage:
        kept = _KEPT.get(self)
        if kept is None:
            kept = self._read_cell()
            _KEPT.put(self, kept)
        return kept

    def _read_cell(self) -> FileImage | BytesImage:
        name = f"{self.path}: {self.column}, row {self.row} of row group {self.group}"
        cell = _row_group(self.path, self.group, self.column)[self.row].as_py()
        data = cell.get("bytes") if isinstance(cell, dict) else cell
        if isinstance(data, bytes) and data:
            return BytesImage(data, name)
        file = cell.get("path") if isinstance(cell, dict) else cell
        if isinstance(file, str) and file:
            return FileImage(self.path.parent / file)
        raise UserError(f"{name}: there is no image in this cell")


class _Kept:
    """Encoded images of cells that were read, up to a number of bytes; the oldest go first.

    A study reads headers in the order of the file and pixels in another, and each cell costs the
    reading of its whole row group.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0
        self.cells: OrderedDict[ParquetImage, FileImage | BytesImage] = OrderedDict()
        self.lock = threading.Lock()

    def get(self, key: "ParquetImage") -> FileImage | BytesImage | None:
        """The cell's image, if it is kept."""
        with self.lock:
            return self.cells.get(key)

    def put(self, key: "ParquetImage", image: FileImage | BytesImage) -> None:
        """Keep a cell's image."""
        with self.lock:
            if key not in self.cells:
                self.cells[key] = image
                self.used += _bytes(image)
            while self.used > self.limit:
                _, oldest = self.cells.popitem(last=False)
                self.used -= _bytes(oldest)


def _bytes(image: FileImage | BytesImage) -> int:
    return len(image.data) if isinstance(image, BytesImage) else 0


_KEPT = _Kept(512 << 20)


@functools.lru_cache(maxsize=4)
def _row_group(path: Path, group: int, column: str) -> Any:
    """One column of a row group; the last few are kept, since neighbours are read together."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        # A struct's fields are named below it, so a plain list of columns would not match.
        return file.read_row_group(group, columns=[column]).column(column)


@dataclasses.dataclass(frozen=True)
class ImageFolder:
    """Finds images by the names that annotations give them.

    Attributes:
        root: folder of the images; COCO's usual subfolders are looked into.
    """

    root: Path

    def find(self, name: str) -> FileImage:
        """The file of this name, or one that does not exist, whose reading then says so.

        Args:
            name: file name, relative path or URL; RefCOCO's object suffix is ignored, and COCO
                images are found under their names of 2014 and of 2017.
        """
        return FileImage(_find(self.root, name))


@functools.lru_cache(maxsize=1 << 17)
def _find(root: Path, name: str) -> Path:
    whole = name.split("?", maxsplit=1)[0].rsplit("://", 1)[-1]
    if (root / whole).is_file():
        return root / whole
    base = whole.replace("\\", "/").rsplit("/", 1)[-1]
    names = [base]
    match = _COCO.fullmatch(base)
    if match:
        names = [_SUFFIX.sub(r"\1", base)]
        names += [f"{p}{match[2]}.jpg" for p in ("COCO_train2014_", "", "COCO_val2014_")]
    if "." not in names[0]:
        names[0] += ".jpg"
    for folder in _FOLDERS:
        for candidate in names:
            if (root / folder / candidate).is_file():
                return root / folder / candidate
    return root / names[0]


def image_key(name: str) -> str:
    """One id per picture: ``coco-N`` for COCO's names of any year and folder, else the name.

    Benchmarks that share COCO images thereby share ids, and never put one image both into the
    detection and the evaluation samples.
    """
    base = name.split("?", maxsplit=1)[0].replace("\\", "/").rsplit("/", 1)[-1]
    match = _COCO.fullmatch(base)
    return f"coco-{int(match[2])}" if match else name


def content_key(image: ImageRef) -> str:
    """An id of the file's content, for benchmarks that name the same picture differently.

    "" if it cannot be read.
    """
    try:
        return hashlib.sha256(image.read()).hexdigest()[:16]
    except Exception:  # noqa: BLE001 - any unreadable file is a failed sample, not a crash
        return ""


def stored_size(image: ImageRef) -> tuple[int, int]:
    """Stored (width, height) from the header; (0, 0) if unreadable, which is judged later."""
    try:
        with image.open() as opened:
            return opened.size
    except Exception:  # noqa: BLE001 - any unreadable file is a failed sample, not a crash
        return (0, 0)


def readable(image: Callable[[], Image.Image]) -> str:
    """Why an image's header cannot be read; "" if it can, or if it is not an ``ImageRef``."""
    opener = getattr(image, "open", None)
    if opener is None:
        return ""
    try:
        opener().close()
    except Exception as error:  # noqa: BLE001 - the reason is reported
        reason = reason_of(error)
        return reason if isinstance(error, OSError) else f"{type(error).__name__}: {reason}"
    return ""
