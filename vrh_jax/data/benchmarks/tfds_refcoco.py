"""The TFDS builder ``ref_coco``, read without TensorFlow.

Prepared data in the array_record format is read through ``as_data_source``. Each example is an
image with its objects. Only the features that are needed are parsed: decoding the objects'
masks takes twenty times as long as everything else.
"""

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

from PIL import Image

from model_ports.errors import UserError
from vrh_jax.data.benchmarks.refs import Ref, Sentence
from vrh_jax.data.images import BytesImage, stored_size

VERSION = "1.1.0"
CONFIGS = {
    ("refcoco", "unc"): "refcoco_unc",
    ("refcoco", "google"): "refcoco_google",
    ("refcocoplus", "unc"): "refcocoplus_unc",
    ("refcocog", "google"): "refcocog_google",
    ("refcocog", "umd"): "refcocog_umd",
}


@dataclasses.dataclass(frozen=True)
class TfdsImage:
    """The image of one example."""

    folder: Path
    split: str
    index: int

    def __call__(self) -> Image.Image:
        return self._bytes()()

    def open(self) -> Image.Image:
        return self._bytes().open()

    def read(self) -> bytes:
        return self._bytes().data

    def _bytes(self) -> BytesImage:
        source, features = _source(self.folder, self.split)
        example = _parse(features, source[self.index])
        return BytesImage(example["image"], f"{self.folder}, {self.split}[{self.index}]")


def is_prepared(folder: Path) -> bool:
    """Whether a folder holds a prepared TFDS dataset."""
    return (folder / "dataset_info.json").is_file() and (folder / "features.json").is_file()


def prepared_folder(root: Path, config: str) -> Path | None:
    """The newest prepared version of ``ref_coco/CONFIG`` in or below ``root``, if any."""
    candidates = [root, root / VERSION]
    for base in (root / "ref_coco" / config, root / config):
        candidates += [base / VERSION, *sorted(base.glob("*"), reverse=True)]
    return next((folder for folder in candidates if is_prepared(folder)), None)


def read_tfds(folder: Path, split: str) -> list[Ref]:
    """Refs of a split, in the order of the examples.

    Raises:
        UserError: tensorflow-datasets is missing, the dataset cannot be read, or it has no
            such split.
    """
    source, features = _source(folder, split)
    config = json.loads((folder / "dataset_info.json").read_text()).get("configName", "ref_coco")
    refs = []
    for index in range(len(source)):
        example = _parse(features, source[index])
        objects, number = example["objects"], int(example["image/id"])
        image = TfdsImage(folder, split, index)
        width, height = stored_size(BytesImage(example["image"]))
        for ref_id, box, said in zip(
            objects["id"], objects["bbox"], _sentences(objects["refexp"]), strict=True
        ):
            y0, x0, y1, x1 = (float(v) for v in box)
            name = f"{config}-{int(ref_id)}"
            refs.append(
                Ref(
                    id=name,
                    image=image,
                    image_id=f"coco-{number}",
                    size=(width, height),
                    box=(x0 * width, y0 * height, x1 * width, y1 * height),
                    sentences=tuple(Sentence(f"{name}/{i}", text, index) for i, text in said),
                    file=f"{folder}/{split}",
                    row={"image/id": number, "id": int(ref_id), "bbox": [y0, x0, y1, x1]},
                )
            )
    return refs


def _sentences(refexp: Any) -> list[list[tuple[int, str]]]:
    """Per object: (refexp_id, text) of its sentences."""
    return [
        [
            (int(i), t.decode() if isinstance(t, bytes) else str(t))
            for i, t in zip(*pair, strict=True)
        ]
        for pair in zip(refexp["refexp_id"], refexp["raw"], strict=True)
    ]


@functools.lru_cache(maxsize=8)
def _source(folder: Path, split: str) -> tuple[Any, Any]:
    """(records of a split as bytes, parser of the features that are needed)."""
    try:
        import numpy as np
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise UserError(
            "reading TFDS data needs the package tensorflow-datasets (TensorFlow itself is not "
            f"needed): pip install 'vrh-jax[tfds]' ({error})"
        ) from error
    try:
        builder = tfds.builder_from_directory(folder)
        splits = list(builder.info.splits)
        decoders = {"image": tfds.decode.SkipDecoding()}
        records = split in splits and builder.as_data_source(split, decoders=decoders).data_source
    except Exception as error:  # tfds raises many types
        raise UserError(
            f"{folder}: TFDS cannot read it ({type(error).__name__}: {error}); it must be "
            "prepared in the array_record format (file_format='array_record')"
        ) from error
    if records is False:
        raise UserError(f"{folder}: there is no split {split!r}; it has {splits}")
    refexp = {"refexp_id": np.int64, "raw": tfds.features.Text()}
    objects = {
        "id": np.int64,
        "bbox": tfds.features.BBoxFeature(),
        "refexp": tfds.features.Sequence(refexp),
    }
    features = {
        "image": tfds.features.Image(encoding_format="jpeg"),
        "image/id": np.int64,
        "objects": tfds.features.Sequence(objects),
    }
    return records, tfds.features.FeaturesDict(features)


def _parse(features: Any, record: bytes) -> dict[str, Any]:
    import tensorflow_datasets as tfds

    decoders = {"image": tfds.decode.SkipDecoding()}
    parsed: dict[str, Any] = features.deserialize_example_np(record, decoders=decoders)
    return parsed
