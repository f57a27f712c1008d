"""Objects with referring expressions, and the samples made of them."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from model_ports.errors import UserError
from vrh_jax.data.benchmarks.files import as_list
from vrh_jax.data.images import ImageFolder, ImageRef, stored_size
from vrh_jax.data.sample import Sample
from vrh_jax.data.source import Key, Rows

Box = tuple[float, float, float, float]
Per = Literal["sentence", "ref"]


@dataclasses.dataclass(frozen=True)
class Sentence:
    """One referring expression, exactly as annotated; typing errors are part of the data.

    Attributes:
        id: unique in the file.
        row: of the file, from 0.
    """

    id: str
    text: str
    row: int


@dataclasses.dataclass(frozen=True)
class Ref:
    """One object of one image, with everything that was said about it.

    Attributes:
        id: unique in the file.
        image: reference, or a name that the folder of images knows.
        size: annotated (width, height); (0, 0) if the annotation has none.
        box: x0, y0, x1, y1 in stored pixels, half-open.
        file: where it was annotated.
        row: the annotation.
    """

    id: str
    image: ImageRef | str
    image_id: str
    size: tuple[int, int]
    box: Box
    sentences: tuple[Sentence, ...]
    file: str
    row: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class RefLoader:
    """Makes samples of (ref, sentence) pairs; ``row["ref_id"]`` of a sample names its ref."""

    folder: ImageFolder

    def key(self, pair: tuple[Ref, Sentence]) -> Key:
        ref, sentence = pair
        return Key(ref.image_id, sentence.id, "grounding", located=True)

    def sample(self, pair: tuple[Ref, Sentence]) -> Sample:
        ref, sentence = pair
        image = self.folder.find(ref.image) if isinstance(ref.image, str) else ref.image
        return Sample(
            id=sentence.id,
            kind="grounding",
            text=sentence.text,
            image=image,
            image_size=ref.size if ref.size != (0, 0) else stored_size(image),
            box=ref.box,
            answer="",
            image_id=ref.image_id,
            group=ref.image_id,
            source=f"{ref.file}#{sentence.row}",
            row={**ref.row, "ref_id": ref.id},
        )


def ref_samples(refs: Iterable[Ref], folder: ImageFolder, per: Per) -> Rows[tuple[Ref, Sentence]]:
    """One sample per sentence, or one per ref with its first sentence."""
    pairs: list[tuple[Ref, Sentence]] = []
    for ref in refs:
        chosen = ref.sentences if per == "sentence" else ref.sentences[:1]
        pairs += [(ref, s) for s in chosen]
    return Rows(pairs, RefLoader(folder))


def box_xywh(raw: Any, where: str) -> Box:
    """[x, y, width, height] as half-open corners."""
    x, y, width, height = _four(raw, where, "[x, y, width, height]")
    return (x, y, x + width, y + height)


def box_xyxy(raw: Any, where: str) -> Box:
    """[x0, y0, x1, y1], half-open."""
    x0, y0, x1, y1 = _four(raw, where, "[x0, y0, x1, y1]")
    return (x0, y0, x1, y1)


def _four(raw: Any, where: str, expected: str) -> Sequence[float]:
    try:
        values = [float(v) for v in as_list(raw, where)]
    except (TypeError, ValueError, UserError):
        values = []
    if len(values) != 4 or not all(math.isfinite(v) for v in values):
        raise UserError(f"{where}: bbox = {raw!r}; expected four numbers {expected} in pixels")
    return values
