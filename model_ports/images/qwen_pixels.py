"""Preprocessing settings of the Qwen-VL image processors, read from a checkpoint."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from PIL import Image

from model_ports.configs import ConfigReader
from model_ports.errors import UserError
from model_ports.images.decode import to_rgb
from model_ports.images.resize import normalise, resize, smart_resize
from model_ports.images.settings import image_settings
from model_ports.images.token_grid import TokenGrid


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

    def frame(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """(width, height) of the resized frame for a stored (width, height)."""
        return smart_resize(
            image_size, factor=self.factor, min_pixels=self.min_pixels, max_pixels=self.max_pixels
        )

    def pixels(self, image: Image.Image) -> np.ndarray:
        """Normalised frame, float32 [height, width, 3]."""
        rgb = to_rgb(image)
        return normalise(resize(rgb, self.frame(rgb.size)), self.mean, self.std)

    def cells(self, image_size: tuple[int, int], *, slot: np.ndarray, image: int) -> TokenGrid:
        """Where the visual tokens of one image lie, in raster order.

        Args:
            image_size: stored (width, height).
            slot: int32 [V], sequence positions of the image's tokens.
            image: index of the image in the prompt.
        """
        columns, rows = (side // self.factor for side in self.frame(image_size))
        row, column = np.indices((rows, columns)).reshape(2, -1)
        width, height = image_size[0] / columns, image_size[1] / rows
        edges = (column * width, row * height, (column + 1) * width, (row + 1) * height)
        count = rows * columns
        return TokenGrid(
            slot=np.asarray(slot, np.int32),
            rect=np.stack(edges, axis=1).astype(np.float64),
            view=np.zeros(count, np.int32),
            image=np.full(count, image, np.int32),
        )


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
