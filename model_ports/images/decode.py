"""Any image that Pillow opens, as 8-bit RGB, the same way on every machine.

The EXIF orientation tag is ignored on purpose: boxes are annotated in stored pixels, and a
silently rotated image would move every one of them.
"""

import io
import re
from pathlib import Path

import numpy as np
from PIL import Image

from model_ports.errors import UserError


def to_rgb(image: Image.Image, name: str = "") -> Image.Image:
    """The first frame as an RGB image of the same size.

    Transparency (RGBA, LA, PA, or a transparent colour) is composited over white, as
    transformers and qwen-vl-utils do. 16-bit grey keeps its high byte; everything else is
    converted by Pillow.

    Args:
        image: possibly not loaded yet; it is decoded here.
        name: how messages call it; its file name by default.

    Raises:
        UserError: truncated, broken or empty image, or a colour mode without a conversion.
    """
    name = name or str(getattr(image, "filename", "")) or "image"
    if 0 in image.size:
        raise UserError(f"{name}: the image is empty ({image.width}x{image.height} pixels)")
    try:
        image.load()
        if image.mode.startswith("I"):
            return _from_wide_integers(image, name).convert("RGB")
        if "A" in image.getbands() or "a" in image.getbands() or "transparency" in image.info:
            image = image.convert("RGBA")
            white = Image.new("RGBA", image.size, (255, 255, 255, 255))
            return Image.alpha_composite(white, image).convert("RGB")
        return image.convert("RGB")
    except UserError:
        raise
    except Exception as error:  # Pillow's decoders raise many types on broken data
        raise UserError(
            f"{name}: the image cannot be decoded ({type(error).__name__}: {error}); replace the "
            "file, or convert it to an 8-bit RGB PNG or JPEG"
        ) from error


def _from_wide_integers(image: Image.Image, name: str) -> Image.Image:
    """16-bit grey (mode I;16, or I as older Pillow versions open it) -> 8-bit grey."""
    values = np.asarray(image)
    if values.min() < 0 or values.max() > 0xFFFF:
        raise UserError(
            f"{name}: grey values from {values.min()} to {values.max()} are outside the 16-bit "
            "range; convert the image to 8 or 16 bits first"
        )
    return Image.fromarray((values.astype(np.uint32) >> 8).astype(np.uint8))


def reason_of(error: Exception) -> str:
    """Pillow's message without the address of the bytes, which differs from run to run."""
    return re.sub(r"<_io\.BytesIO object at 0x[0-9a-fA-F]+>", "in these bytes", str(error))


def load_image(source: str | Path | bytes, name: str = "") -> Image.Image:
    """Read and decode an image file (or its bytes) as RGB.

    Raises:
        UserError: missing, not an image, truncated or broken; the message names the file.
    """
    name = name or (f"{len(source)} bytes" if isinstance(source, bytes) else str(source))
    try:
        opened = Image.open(io.BytesIO(source) if isinstance(source, bytes) else source)
    except FileNotFoundError as error:
        raise UserError(f"{name}: no such image file; check the path") from error
    except Exception as error:  # Pillow raises many types on files that are not images
        raise UserError(
            f"{name}: not a readable image ({type(error).__name__}: {reason_of(error)}); expected "
            "a file that Pillow opens, such as PNG or JPEG"
        ) from error
    with opened:
        return to_rgb(opened, name)
