"""VAW (Visual Attributes in the Wild, Adobe; non-commercial licence) as multiple choice.

VAW is published for attribute prediction, so questions are built here, by one rule:

1. An object is asked about if its name is annotated once in its image (so that the question has
   one object), and only about attributes that ``vaw.yaml`` lists.
2. A question is about one type of attribute (color, material, shape, ...). The right option is a
   positive attribute of that type; the wrong ones are *explicit* negatives of it.
3. A wrong option is no synonym of any positive attribute of the object: not the same, not in a
   common line of the synonyms, no word in common ("blue", "light blue"). Nor are two options
   synonyms of each other.
4. Types with too few such negatives are not asked. At most ``per_object`` questions are drawn
   for an object, of different types. The order of options is drawn, too.

Every draw depends on the seed and the object's id only, not on the file's order or on other
objects; the same files and seed give the same questions.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from pydantic import Field

from model_ports.errors import UserError
from vrh_jax.data.benchmarks.files import as_list, read_objects
from vrh_jax.data.benchmarks.questions import Box, Question, questions
from vrh_jax.data.benchmarks.refs import box_xywh
from vrh_jax.data.images import FileImage, ImageFolder
from vrh_jax.data.registry import Split, Task
from vrh_jax.data.source import Rows
from vrh_jax.strict import Strict

# Visual Genome's two archives.
_FOLDERS = ("", "VG_100K", "VG_100K_2", "images", "images/VG_100K", "images/VG_100K_2")
_FIELDS = ("image_id", "instance_id", "instance_bbox", "object_name", "positive_attributes",
           "negative_attributes")  # fmt: skip


class VawOptions(Strict):
    """Options of the task ``vaw``."""

    path: Path | tuple[Path, ...] = Field(
        description="annotation file, such as test.json, or several, such as both parts of train"
    )
    images: Path = Field(description="folder of Visual Genome's images (IMAGE_ID.jpg)")
    choices: int = Field(4, ge=2, le=8, description="options per question")
    per_object: int = Field(1, ge=1, description="most questions about one object")
    types: tuple[str, ...] = Field((), description="types of attributes; default: all of vaw.yaml")
    seed: int = Field(0, ge=0, description="seed of attributes, options and their order")


@cache
def rules() -> dict[str, Any]:
    """vaw.yaml: ``types`` (name -> question, attributes), ``synonyms`` (word -> words)."""
    raw = yaml.safe_load(Path(__file__).with_name("vaw.yaml").read_text())
    types = {
        name: {"question": entry["question"], "attributes": _words(entry["attributes"])}
        for name, entry in raw["types"].items()
    }
    synonyms: dict[str, set[str]] = {}
    for line in raw["synonyms"]:
        group = _words(line)
        for word in group:
            synonyms.setdefault(word, set()).update(group)
    return {"types": types, "synonyms": synonyms}


def _words(line: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in line.split(","))


def load(options: VawOptions, _split: Split, _count: int) -> Rows[Question]:
    """All questions of the files, by the rule of this module."""
    known = rules()["types"]
    unknown = sorted(set(options.types) - set(known))
    if unknown:
        raise UserError(f"vaw: type {unknown[0]!r} is unknown (known: {', '.join(known)})")
    found: list[Question] = []
    paths = (options.path,) if isinstance(options.path, Path) else options.path
    entries = [(path, i, row) for path in paths for i, row in enumerate(read_objects(path))]
    for path, number, row in entries:
        missing = [field for field in _FIELDS if field not in row]
        if missing:
            raise UserError(f"{path}: entry {number} lacks {missing[0]!r}")
        for field in ("positive_attributes", "negative_attributes"):
            row[field] = as_list(row[field], f"{path}: entry {number}: {field}")
    names = Counter((str(row["image_id"]), str(row["object_name"])) for _, _, row in entries)
    folder = ImageFolder(options.images)
    for path, number, row in entries:
        if names[str(row["image_id"]), str(row["object_name"])] == 1:
            found += _ask(row, f"{path.name}#{number}", folder, options)
    return questions(found)


TASK = Task(options=VawOptions, load=load, generated=False)


def alike(a: str, b: str) -> bool:
    """Whether two attributes may be true of the same thing because they mean nearly the same."""
    shared = set(a.replace("-", " ").split()) & set(b.replace("-", " ").split())
    return bool(shared) or b in rules()["synonyms"].get(a, ())


def offers(row: Mapping[str, Any], kind: str) -> tuple[list[str], list[str]]:
    """(positives of a type, explicit negatives of it that are like no positive), in order."""
    listed = rules()["types"][kind]["attributes"]
    said = [str(a).strip().lower() for a in row["positive_attributes"]]
    denied = [str(a).strip().lower() for a in row["negative_attributes"]]
    right = sorted({a for a in said if a in listed and a not in denied})
    wrong = sorted(
        {a for a in denied if a in listed and not any(alike(a, other) for other in said)}
    )
    return right, wrong


def draw_options(
    right: str, wrong: Sequence[str], count: int, rng: np.random.Generator
) -> tuple[str, ...] | None:
    """``count`` options in a drawn order, no two alike; None if there are too few."""
    chosen = [right]
    for candidate in rng.permutation(np.array(sorted(wrong), dtype=object)):
        if len(chosen) < count and not any(alike(str(candidate), other) for other in chosen):
            chosen.append(str(candidate))
    if len(chosen) < count:
        return None
    return tuple(chosen[i] for i in rng.permutation(count))


def _ask(
    row: Mapping[str, Any], source: str, folder: ImageFolder, options: VawOptions
) -> list[Question]:
    """The questions about one object."""
    digest = hashlib.sha256(f"{row['image_id']}/{row['instance_id']}".encode()).digest()
    rng = np.random.default_rng([options.seed, int.from_bytes(digest[:8])])
    found: list[Question] = []
    kinds = sorted(options.types or rules()["types"])
    for kind in (kinds[i] for i in rng.permutation(len(kinds))):
        right, wrong = offers(row, kind)
        if not right or len(found) == options.per_object:
            continue
        answer = right[int(rng.integers(len(right)))]
        choices = draw_options(answer, wrong, options.choices, rng)
        if choices is None:
            continue
        question = rules()["types"][kind]["question"]
        found.append(
            Question(
                id=f"{row['instance_id']}-{kind}",
                kind="choice",
                text=question.replace("{object}", str(row["object_name"])),
                answer=answer,
                image=_image(folder, row["image_id"]),
                image_id=f"vg-{row['image_id']}",
                source=source,
                rule="vaw",
                category=kind,
                choices=choices,
                box=_xyxy(row["instance_bbox"], source),
                row={k: v for k, v in row.items() if k != "instance_polygon"},
            )
        )
    return found


def _image(folder: ImageFolder, image_id: Any) -> FileImage:
    name = f"{image_id}.jpg"
    for part in _FOLDERS:
        if (folder.root / part / name).is_file():
            return folder.find(f"{part}/{name}" if part else name)
    return folder.find(name)


def _xyxy(raw: Any, source: str) -> Box | None:
    """x, y, width, height -> corners; None for no box and for one without area."""
    if raw is None or raw == []:
        return None
    x0, y0, x1, y1 = box_xywh(raw, source)
    return (x0, y0, x1, y1) if x0 < x1 and y0 < y1 else None
