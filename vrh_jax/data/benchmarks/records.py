"""Annotation files of question-answering benchmarks as records: Parquet, JSON, tables."""

import base64
import binascii
import csv
import dataclasses
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from model_ports.errors import UserError
from model_ports.images.decode import load_image
from vrh_jax.data.benchmarks.files import as_list, read_json, read_parquet, read_text
from vrh_jax.data.images import ImageFolder, ImageRef

# VLMEvalKit's tables name another row instead of repeating its image.
_SHORTEST_IMAGE = 64
_SHARD = re.compile(r"-\d{5}-of-(\d{5})")


@dataclasses.dataclass(frozen=True)
class Base64Image:
    """An encoded image as a table's cell holds it; ``name`` is how messages call it."""

    text: str = dataclasses.field(repr=False)
    name: str = ""

    def __call__(self) -> Image.Image:
        return load_image(self.read(), self.name)

    def open(self) -> Image.Image:
        return Image.open(io.BytesIO(self.read()))

    def read(self) -> bytes:
        try:
            return base64.b64decode(self.text, validate=True)
        except binascii.Error as error:
            raise UserError(f"{self.name}: the image is not base64 ({error})") from None


@dataclasses.dataclass(frozen=True)
class Record:
    """One annotation of a file.

    Attributes:
        row: as the file has it, without the image's bytes.
        image: None if the file has none for it.
        source: "FILE#ROW".
    """

    row: Mapping[str, Any]
    image: ImageRef | None
    source: str

    def text(self, key: str) -> str:
        """A value as text.

        Raises:
            UserError: it is missing or empty.
        """
        value = self.row.get(key)
        if value is None or str(value).strip() == "":
            raise UserError(f"{self.source}: {key!r} is missing; the entry has {sorted(self.row)}")
        return str(value)

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts; () for null.

        Raises:
            UserError: the value is no list.
        """
        return tuple(str(v) for v in as_list(self.row.get(key), f"{self.source}: {key}"))

    def picture(self) -> ImageRef:
        """The image.

        Raises:
            UserError: the annotation names none.
        """
        if self.image is None:
            raise UserError(f"{self.source}: no image is named")
        return self.image


def pick(path: Path, names: Sequence[str]) -> Path:
    """A file, or the first of ``names`` (glob patterns) in a folder or in its ``data``.

    Raises:
        UserError: nothing is there; the message lists what is looked for.
    """
    if path.is_file():
        return path
    for name in names:
        for folder in (path, path / "data"):
            found = sorted(folder.glob(name))
            if found:
                return found[0]
    raise UserError(f"{path}: expected one of {', '.join(names)} there, found none of them")


def read_records(
    path: Path,
    *,
    columns: Sequence[str],
    image: str = "image",
    name: str | None = None,
    images: Path | None = None,
    keep: Callable[[Mapping[str, Any]], bool] | None = None,
) -> list[Record]:
    """All annotations of a file: Parquet, JSON, JSON lines (also .gz) or a table (.tsv).

    Args:
        columns: must be there.
        image: column with the image's bytes in Parquet, or as base64 in a table.
        name: key of the image's file name in JSON (or of an object with its ``file_path``);
            default ``image``.
        images: folder in which names are looked for; default: the file's own.
        keep: which annotations count; rows keep their numbers in the file.

    Raises:
        UserError: unreadable file or missing column.
    """
    suffix = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    folder = ImageFolder(images or path.parent)
    found: Iterator[tuple[dict[str, Any], ImageRef | None]]
    if suffix == ".parquet":
        found = _parquet(path, columns, image)
    elif suffix == ".tsv":
        found = _table(path, columns, image)
    elif suffix in (".json", ".jsonl"):
        found = _objects(path, columns, name or image, folder)
    else:
        raise UserError(f"{path}: expected .parquet, .json, .jsonl (or .gz of them), or .tsv")
    return [
        Record(row, picture, f"{path.name}#{number}")
        for number, (row, picture) in enumerate(found)
        if keep is None or keep(row)
    ]


def _parquet(
    path: Path, columns: Sequence[str], image: str
) -> Iterator[tuple[dict[str, Any], ImageRef | None]]:
    for row in read_parquet(_shards(path), columns=columns, images=[image]):
        yield row, row.pop(image)


def _shards(path: Path) -> list[Path]:
    """All shards of a file called STEM-00000-of-00002(-HASH).parquet, or the file itself."""
    match = _SHARD.search(path.name)
    if not match:
        return [path]
    total = int(match[1])
    found = sorted(path.parent.glob(f"{path.name[: match.start()]}-*-of-{match[1]}*.parquet"))
    if len(found) != total:
        raise UserError(
            f"{path.parent}: {len(found)} of the {total} shards of {path.name} are there; "
            "download the rest"
        )
    return found


def _objects(
    path: Path, columns: Sequence[str], name: str, folder: ImageFolder
) -> Iterator[tuple[dict[str, Any], ImageRef | None]]:
    for number, row in enumerate(_json_rows(path)):
        if not isinstance(row, dict):
            raise UserError(f"{path}: entry {number} is not an object, but {type(row).__name__}")
        missing = [c for c in columns if c not in row]
        if missing:
            raise UserError(
                f"{path}: entry {number} lacks {missing[0]!r}; it has {sorted(map(str, row))}"
            )
        named = row.get(name)
        if isinstance(named, dict):  # image_info of SpatialRGPT-Bench
            named = named.get("file_path")
        yield row, folder.find(str(named)) if named else None


def _json_rows(path: Path) -> list[Any]:
    """Entries of a list, of an object's ``questions`` or values, or of lines of JSON."""
    if ".jsonl" not in path.suffixes:
        try:
            document = read_json(path)
        except UserError:
            if not path.is_file():
                raise
            document = None  # the hub calls JSON lines .json now and then
        if isinstance(document, dict):
            asked = document.get("questions")
            if isinstance(asked, list):
                return asked
            values = list(document.values())
            # Else the file is a single line of JSON lines.
            return values if all(isinstance(v, dict) for v in values) else [document]
        if isinstance(document, list):
            return document
    rows = []
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise UserError(f"{path}, line {number}: not JSON ({error})") from None
    return rows


def _table(
    path: Path, columns: Sequence[str], image: str
) -> Iterator[tuple[dict[str, Any], ImageRef | None]]:
    """Rows of a tab-separated file with base64 images, read one by one."""
    csv.field_size_limit(1 << 30)
    by_index: dict[str, str] = {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file, delimiter="\t")
            for column in (*columns, image):
                if column not in (reader.fieldnames or ()):
                    raise UserError(
                        f"{path}: column {column!r} is missing; it has {reader.fieldnames}"
                    )
            for number, row in enumerate(reader):
                text = row.pop(image) or ""
                if len(text) > _SHORTEST_IMAGE:
                    by_index[str(row.get("index"))] = text
                else:
                    text = by_index.get(text, text)
                yield dict(row), Base64Image(text, f"{path}, row {number}") if text else None
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; check the path") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: not a readable table ({error})") from None
