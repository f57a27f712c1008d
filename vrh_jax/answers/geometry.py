"""From the numbers of an answer to a box in stored pixels, and how well two boxes agree."""

from collections.abc import Sequence

from model_ports.box_format import BoxFormat
from vrh_jax.answers.box_forms import Box
from vrh_jax.answers.boxes import parse_box


def read_box(
    text: object,
    box_format: BoxFormat,
    image_size: tuple[int, int],
    resized: tuple[int, int],
) -> tuple[Box | None, str]:
    """The stated box in pixels of the stored image, and why there is none.

    A box without area or with reversed corners is invalid and never repaired: reversed corners
    often are an xywh answer. A box that leaves the frame is clipped to it (models do exceed it:
    QwenLM/Qwen3-VL issue 1035); one that lies wholly outside is invalid.

    Args:
        text: what the model printed.
        box_format: the model's units and order.
        image_size: stored (width, height).
        resized: (width, height) of the frame that the model saw.

    Returns:
        (x0, y0, x1, y1) or None, and "", "parse_failure" or "invalid_box".
    """
    box = parse_box(text, box_format)
    if box is None:
        return None, "parse_failure"
    x0, y0, x1, y1 = box
    if not (x0 < x1 and y0 < y1):
        return None, "invalid_box"
    x0, y0, x1, y1 = box_format.pixels(box, image_size, resized)
    width, height = image_size
    x0, x1 = (min(max(x, 0.0), float(width)) for x in (x0, x1))
    y0, y1 = (min(max(y, 0.0), float(height)) for y in (y0, y1))
    if not (x0 < x1 and y0 < y1):
        return None, "invalid_box"
    return (x0, y0, x1, y1), ""


def iou(a: Sequence[float], b: Sequence[float]) -> float:
    """Continuous intersection over union of two x0, y0, x1, y1 boxes; 0 if one has no area."""
    area_a = max(a[2] - a[0], 0.0) * max(a[3] - a[1], 0.0)
    area_b = max(b[2] - b[0], 0.0) * max(b[3] - b[1], 0.0)
    if area_a <= 0 or area_b <= 0:
        return 0.0
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    both = max(width, 0.0) * max(height, 0.0)
    return both / (area_a + area_b - both)
