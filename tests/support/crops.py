"""Checks that every family that cuts images into crops goes through."""

from typing import Any

import numpy as np
from PIL import Image

from model_ports.images.crops import SEPARATOR, Crops

# Wide, tall, square, tiny, long; the last ones are stretched or shrunk most.
SIZES = [
    (640, 480), (480, 640), (640, 427), (427, 640), (500, 333), (640, 640), (1024, 768),
    (1920, 1080), (300, 1200), (37, 500), (336, 336), (333, 334), (901, 97),
]  # fmt: skip


def pattern(width: int, height: int) -> Image.Image:
    """The image of the golden values."""
    y, x, c = np.ogrid[0:height, 0:width, 0:3]
    return Image.fromarray(((3 * x + 5 * y + 40 * c + (x * y) // 64) % 256).astype(np.uint8))


def check_golden_pixels(crops: Crops, size: tuple[int, int], golden: dict[str, Any]) -> None:
    """Shape, sums and five values of the pattern, from the published preprocessor."""
    pixels = crops.cut(pattern(*size))
    assert pixels.shape == golden["shape"]
    assert pixels.dtype == np.float32
    exact = pixels.astype(np.float64)
    np.testing.assert_allclose(np.abs(exact).sum(), golden["abs"], rtol=2e-7)
    np.testing.assert_allclose(exact.sum(), golden["sum"], atol=golden["abs"] * 2e-7)
    n = pixels.size
    at = [exact.ravel()[i] for i in (0, 1, n // 3, n // 2, n - 1)]
    np.testing.assert_allclose(at, golden["at"], atol=6e-6)


def box_tokens(crops: Crops, size: tuple[int, int], box: Any, share: float = 0.0) -> list[int]:
    """Numbers, from the first visual token on, of the tokens that a box covers to more than a
    share; in double precision, since edges of the golden boxes halve cells exactly."""
    layout = crops.layout(size)
    grid = layout.grid(np.arange(len(layout.index)), 0)
    left, top, right, bottom = grid.rect.T
    width = np.minimum(right, box[2]) - np.maximum(left, box[0])
    height = np.minimum(bottom, box[3]) - np.maximum(top, box[1])
    covered = (width > 0) & (height > 0)
    covered &= width * height > share * ((right - left) * (bottom - top))
    if share == 0:
        assert np.array_equal(covered, grid.cover(box) > 0)
    return [int(slot) for slot in grid.slot[covered]]


def check_painting(crops: Crops, size: tuple[int, int], seed: int, shift: Any, scale: Any) -> None:
    """A white box on black brightens every token's patch by the share that the box covers.

    Args:
        shift, scale: mean and deviation of the normalisation.
    """
    rng = np.random.default_rng(seed)
    width, height = size
    x0, y0 = int(rng.integers(0, width // 2)), int(rng.integers(0, height // 2))
    x1, y1 = int(rng.integers(x0 + 20, width + 1)), int(rng.integers(y0 + 20, height + 1))
    image = Image.new("RGB", size)
    image.paste((255, 255, 255), (x0, y0, x1, y1))
    pixels = crops.cut(image) * np.reshape(scale, (3, 1, 1)) + np.reshape(shift, (3, 1, 1))
    n = crops.tokens
    step = pixels.shape[-1] // n
    patches = pixels.mean(1).reshape(-1, n, step, n, step).mean((2, 4)).ravel()
    layout = crops.layout(size)
    grid = layout.grid(np.arange(7, 7 + len(layout.index)), 3)
    assert set(grid.image) == {3}
    seen = patches[layout.index[layout.index != SEPARATOR]]
    covered = grid.cover((x0, y0, x1, y1), rule="coverage", image=3)
    assert np.abs(seen - covered).max() < 0.12
    assert np.abs(seen - covered).mean() < 0.02
    # Each kind of view shows the whole image once; dropping padding may cost half a cell a side.
    left, top, right, bottom = grid.rect.T
    clipped = (np.clip(right, 0, width) - np.clip(left, 0, width)) * (
        np.clip(bottom, 0, height) - np.clip(top, 0, height)
    )
    for views in (grid.view == 0, grid.view > 0):
        if views.any():
            np.testing.assert_allclose(clipped[views].sum(), width * height, rtol=0.15)
