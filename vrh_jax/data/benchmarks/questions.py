"""What the question-answering benchmarks share: their files, and samples made from questions.

A benchmark's file is read into ``Record``s (annotation, image reference, place), and each becomes
a ``Question``, which holds everything but the image's size; that is read when a sample is made.
"""

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
from pydantic import Field

from model_ports.errors import UserError
from model_ports.images.decode import load_image
from vrh_jax.config import Strict
from vrh_jax.data.benchmarks.files import read_json, read_parquet, read_text
from vrh_jax.data.images import ImageFolder, ImageRef, stored_size
from vrh_jax.data.sample import Sample, TaskKind
from vrh_jax.data.source import Key, Rows

Box = tuple[float, float, float, float]
# VLMEvalKit's tables name another row instead of repeating its image.
_SHORTEST_IMAGE = 64
_SHARD = re.compile(r"-\d{5}-of-(\d{5})")


class QuestionOptions(Strict):
    """Options of a question-answering benchmark."""

    path: Path = Field(description="the benchmark's file, or the folder that holds it")
    images: Path | None = Field(
        None, description="folder of the images, where the file names them; default: beside it"
    )


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

    def picture(self) -> ImageRef:
        """The image.

        Raises:
            UserError: the annotation names none.
        """
        if self.image is None:
            raise UserError(f"{self.source}: no image is named")
        return self.image


@dataclasses.dataclass(frozen=True)
class Question:
    """A sample but for the size of its image; attributes as those of ``Sample``.

    Attributes:
        group: default: ``image_id``.
        size: annotated (width, height), used where the image cannot be read.
    """

    id: str
    kind: TaskKind
    text: str
    answer: str
    image: ImageRef
    image_id: str
    source: str
    rule: str = ""
    category: str = ""
    choices: tuple[str, ...] = ()
    box: Box | None = None
    group: str = ""
    unit: str = ""
    precision: int | None = None
    size: tuple[int, int] = (0, 0)
    row: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)


@dataclasses.dataclass(frozen=True)
class QuestionLoader:
    """Makes samples from questions."""

    def sample(self, row: Question, /) -> Sample:
        """The sample; reads the image's header."""
        size = stored_size(row.image)
        return Sample(
            id=row.id,
            kind=row.kind,
            text=row.text,
            image=row.image,
            image_size=size if size != (0, 0) else row.size,
            box=row.box,
            answer=row.answer,
            image_id=row.image_id,
            group=row.group or row.image_id,
            choices=row.choices,
            unit=row.unit,
            precision=row.precision,
            category=row.category,
            rule=row.rule,
            source=row.source,
            row=row.row,
        )

    def key(self, row: Question, /) -> Key:
        """The key of that sample."""
        return Key(row.image_id, row.id, row.kind, row.box is not None)


def questions(found: Sequence[Question]) -> Rows[Question]:
    """A lazy source of samples."""
    return Rows(found, QuestionLoader())


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
    """Entries of a list, of an object's values, of its list, or of lines of JSON."""
    if ".jsonl" not in path.suffixes:
        try:
            document = read_json(path)
        except UserError:
            if not path.is_file():
                raise
            document = None  # the hub calls JSON lines .json now and then
        if isinstance(document, dict):
            lists = [v for v in document.values() if isinstance(v, list)]
            return lists[0] if len(lists) == 1 else list(document.values())
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


def option_of(answer: str, choices: Sequence[str], source: str) -> str:
    """The text of the right option, named by its text (first) or its letter ("C", "(C)").

    Raises:
        UserError: the answer is none of the options, or there are fewer than two.
    """
    if len(choices) > 1:
        same = [choice for choice in choices if choice.strip() == answer.strip()]
        letter = re.fullmatch(r"\W*([A-Za-z])\W*", answer)
        index = ord(letter[1].upper()) - ord("A") if letter else len(choices)
        if same or index < len(choices):
            return same[0] if same else choices[index]
    raise UserError(f"{source}: the answer {answer!r} is none of the options {list(choices)}")
