"""Image sizes, resizing with Pillow's filters (torchvision's differ slightly), normalisation."""

import math

import numpy as np
from PIL import Image

from model_ports.errors import UserError

Size = tuple[int, int]  # (width, height)

MAX_ASPECT = 200

# What checkpoints normalise with: mean and deviation per channel, after division by 255.
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
HALF = (0.5, 0.5, 0.5)  # as both: values from -1 to 1


def smart_resize(
    size: Size,
    *,
    factor: int,
    min_pixels: float,
    max_pixels: float,
    grow: bool = False,
) -> Size:
    """The frame that a Qwen-VL or GLM-4V model sees: multiples of ``factor`` within a pixel budget.

    Sides are rounded to the nearest multiple (half to even, as Python rounds); over the budget
    they shrink and are floored, under it they grow and are rounded up. Source:
    transformers ``models/qwen2_vl/image_processing_qwen2_vl.py``.

    Args:
        size: stored (width, height).
        factor: patch size times merge size.
        min_pixels, max_pixels: budget of the frame, in pixels.
        grow: a side below ``factor`` is brought up to it first, with the other side in
            proportion (GLM-4V).

    Returns:
        (width, height) of the frame.

    Raises:
        UserError: empty image, or one side (when grown) more than 200 times the other.
    """
    width, height = size
    if min(size) < 1:
        raise UserError(f"an image of {width}x{height} pixels is empty")
    if grow and min(size) < factor:
        scale = max(factor / height, factor / width)
        width, height = int(width * scale), int(height * scale)
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise UserError(
            f"an image of {size[0]}x{size[1]} pixels has an aspect ratio above {MAX_ASPECT}, which "
            "this model's preprocessing refuses; crop or pad the image"
        )
    new_h, new_w = round(height / factor) * factor, round(width / factor) * factor
    if new_h * new_w > max_pixels:
        shrink = math.sqrt((height * width) / max_pixels)
        new_h = max(factor, math.floor(height / shrink / factor) * factor)
        new_w = max(factor, math.floor(width / shrink / factor) * factor)
    elif new_h * new_w < min_pixels:
        stretch = math.sqrt(min_pixels / (height * width))
        new_h = math.ceil(height * stretch / factor) * factor
        new_w = math.ceil(width * stretch / factor) * factor
    return new_w, new_h


def resize(
    image: Image.Image,
    size: Size,
    resample: Image.Resampling = Image.Resampling.BICUBIC,
) -> np.ndarray:
    """RGB image -> uint8 [height, width, 3] of the given (width, height)."""
    return np.asarray(image.resize(size, resample), np.uint8)


def normalise(pixels: np.ndarray, mean: tuple[float, ...], std: tuple[float, ...]) -> np.ndarray:
    """(x / 255 - mean) / std per channel: uint8 [..., 3] -> float32 [..., 3].

    There are 256 results per channel, so they are computed once and looked up.
    """
    levels = np.arange(256, dtype=np.float32)[:, None] / np.float32(255)
    table = (levels - np.asarray(mean, np.float32)) / np.asarray(std, np.float32)
    out = np.empty(pixels.shape, np.float32)
    for channel in range(pixels.shape[-1]):
        out[..., channel] = table[:, channel][pixels[..., channel]]
    return out
