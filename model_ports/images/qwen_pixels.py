"""Preprocessing of Qwen-VL: the whole image resized to one frame within a pixel budget."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from PIL import Image

from model_ports.configs import ConfigReader
from model_ports.errors import UserError
from model_ports.images.crops import Layout
from model_ports.images.resize import Size, normalise, resize, smart_resize
from model_ports.images.settings import image_settings


@dataclasses.dataclass(frozen=True)
class QwenPixels:
    """How a stored image becomes the pixels that the vision tower sees.

    Attributes:
        KINDS: classes of transformers that do so, up to a suffix such as ``Fast``.
        factor: pixels along one side of a visual token (patch size times merge size).
        min_pixels, max_pixels: budget of the resized frame.
        mean, std: normalisation per channel, after division by 255.
    """

    KINDS: ClassVar[tuple[str, ...]] = ("Qwen2VLImageProcessor", "Qwen2_5_VLImageProcessor")

    factor: int
    min_pixels: int
    max_pixels: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @classmethod
    def read(cls, folder: Path, *, patch: int, merge: int, temporal: int) -> Self:
        """Settings of a checkpoint folder; ``preprocessor_config.json``, or the part of
        ``processor_config.json`` that transformers 5 writes instead.

        Raises:
            UserError: no settings, an unknown one, one that this port does not honour, or
                patch sizes that contradict config.json.
        """
        reader = _settings(folder)
        reader.expect("patch_size", patch)
        reader.expect("merge_size", merge)
        reader.expect("temporal_patch_size", temporal)
        reader.expect("resample", int(Image.Resampling.BICUBIC))
        reader.expect("rescale_factor", 1 / 255, 0.00392156862745098)
        for name in ("do_resize", "do_rescale", "do_normalize", "do_convert_rgb"):
            reader.expect(name, True)
        for name in ("do_center_crop", "do_pad", "crop_size", "pad_size"):
            reader.expect(name, None, False)
        reader.ignore(_WITHOUT_EFFECT)
        low, high = _budget(reader)
        kind = reader.optional("image_processor_type", str)
        if kind and not kind.startswith(cls.KINDS):
            raise UserError(
                f"{reader.where}: image_processor_type = {kind!r}; expected {cls.KINDS[0]}, whose "
                "resizing this port follows"
            )
        mean, std = (_channels(reader, name) for name in ("image_mean", "image_std"))
        if 0 in std:
            raise UserError(f"{reader.where}: image_std = {std}; expected no zero")
        reader.finish()
        return cls(patch * merge, low, high, mean, std)

    def canvas(self, image_size: Size) -> Size:
        """(width, height) of the resized frame for a stored (width, height)."""
        return smart_resize(
            image_size, factor=self.factor, min_pixels=self.min_pixels, max_pixels=self.max_pixels
        )

    def pixels(self, image: Image.Image) -> np.ndarray:
        """Normalised frame of an RGB image, float32 [height, width, 3]."""
        return normalise(resize(image, self.canvas(image.size)), self.mean, self.std)

    def grid(self, image_size: Size) -> tuple[int, int]:
        """(columns, rows) of visual tokens for a stored (width, height)."""
        width, height = self.canvas(image_size)
        return width // self.factor, height // self.factor

    def layout(self, image_size: Size) -> Layout:
        """The tokens of an image of this stored size, row-major."""
        return Layout.even(image_size, *self.grid(image_size))


# Names of classes, call options that are not set, and sizes that smart resizing replaces.
_WITHOUT_EFFECT = (
    "processor_class",
    "feature_extractor_type",
    "data_format",
    "input_data_format",
    "default_to_square",
    "device",
    "return_tensors",
    "disable_grouping",
    "_processor_class",
)


def _settings(folder: Path) -> ConfigReader:
    where, settings = image_settings(folder)
    if not settings:
        raise UserError(
            f"{folder} has no preprocessor_config.json; the pixel budget and normalisation come "
            "from that file, so copy it from the checkpoint"
        )
    return ConfigReader(settings, where)


def _budget(reader: ConfigReader) -> tuple[int, int]:
    """Pixel budget; ``min_pixels``/``max_pixels`` override ``size``, as in the reference."""
    size: Mapping[str, Any] = reader.optional("size", dict) or {}
    inner = ConfigReader(size, f"{reader.where}: size")
    low = inner.optional("shortest_edge", int)
    high = inner.optional("longest_edge", int)
    for name in ("min_pixels", "max_pixels"):  # some files repeat the budget here
        inner.expect(name, None, reader.raw.get(name))
    inner.finish()
    low = reader.optional("min_pixels", int) or low
    high = reader.optional("max_pixels", int) or high
    if not low or not high or not 0 < low <= high:
        raise UserError(
            f"{reader.where}: the pixel budget is {low} to {high}; expected min_pixels and "
            "max_pixels, or size with shortest_edge and longest_edge, both positive"
        )
    return low, high


def _channels(reader: ConfigReader, name: str) -> tuple[float, float, float]:
    values = reader.take(name, list)
    if len(values) != 3 or not all(isinstance(v, int | float) for v in values):
        raise UserError(f"{reader.where}: {name} = {values!r}; expected three numbers")
    return float(values[0]), float(values[1]), float(values[2])
