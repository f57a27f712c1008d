"""DeepSeek-VL2's views against Pillow, golden values, and cells verified by painting."""

import dataclasses

import numpy as np
import pytest
from PIL import Image
from support.crops import SIZES, box_tokens, check_golden_pixels
from support.deepseek import views
from support.parity import textured_image

from model_ports.catalogue import published_config
from model_ports.errors import UserError
from model_ports.images.crops import SEPARATOR
from model_ports.images.letterbox import VIEW_SEPARATOR, Letterbox

CANVASES = published_config("deepseek-vl2-small")["candidate_resolutions"]
FULL = Letterbox(side=384, patch=14, joined=2, canvases=tuple(map(tuple, CANVASES)))
GOLDEN = {
    (640, 480): {
        "shape": (5, 3, 384, 384), "sum": -1854.860, "abs": 799254.935,
        "at": [-0.00392, -0.00392, -0.00392, -0.85098, -0.00392],
    },
    (427, 640): {
        "shape": (5, 3, 384, 384), "sum": -2873.985, "abs": 712559.677,
        "at": [-0.00392, -0.00392, -0.00392, 0.72549, -0.00392],
    },
}  # fmt: skip


@pytest.mark.parametrize("size", GOLDEN)
def test_golden_pixels(size):
    check_golden_pixels(FULL, size, GOLDEN[size])


def test_golden_tokens_of_a_box():
    box = (100, 120, 300, 260)
    for share, golden in ((0.0, (83, 629, 35624)), (0.5, (66, 629, 30777))):
        chosen = box_tokens(FULL, (640, 480), box, share=share)
        assert chosen[:3] == [62, 63, 64] if share == 0 else [62, 63]
        assert (len(chosen), chosen[-1], sum(chosen)) == golden
    tall = (10.5, 300, 200, 630)
    every, most = (box_tokens(FULL, (427, 640), tall, share=share) for share in (0.0, 0.5))
    assert (len(every), sum(every), len(most), sum(most)) == (184, 118972, 151, 100548)


@pytest.mark.parametrize(
    ("size", "canvas", "total", "separators"),
    [
        ((640, 480), (768, 768), 1023, 43), ((500, 333), (768, 384), 617, 29),
        ((1024, 768), (1152, 768), 1415, 43), ((1920, 1080), (1536, 768), 1807, 43),
        ((300, 1200), (384, 1536), 1051, 71),
    ],
)  # fmt: skip
def test_golden_counts(size, canvas, total, separators):
    layout = FULL.layout(size)
    assert FULL.canvas(size) == canvas
    assert (len(layout.index), int((layout.index < 0).sum())) == (total, separators)
    whole, between, rows = np.split(layout.index, [210, 211])
    assert between == VIEW_SEPARATOR
    for part, width in ((whole, 14), (rows, canvas[0] // 384 * 14)):
        by_row = part.reshape(-1, width + 1)
        assert (by_row[:, -1] == SEPARATOR).all()
        assert (by_row[:, :-1] >= 0).all()


@pytest.mark.parametrize("size", SIZES)
def test_pixels_are_those_of_pillow(size):
    image = textured_image(*size, seed=sum(size))
    whole, canvas = (view.numpy() for view in views(image, CANVASES, 384))
    crops = FULL.cut(image)
    np.testing.assert_allclose(crops[0], whole, atol=1e-6)
    columns = canvas.shape[2] // 384
    for number, crop in enumerate(crops[1:]):
        row, column = divmod(number, columns)
        part = canvas[:, row * 384 : row * 384 + 384, column * 384 : column * 384 + 384]
        np.testing.assert_allclose(crop, part, atol=1e-6)


@pytest.mark.parametrize("size", SIZES)
def test_cells_by_painting(size):
    """A white box on black brightens every token's patches by the share that it covers; the
    grey of the padding is no part of a cell that lies in the image."""
    rng = np.random.default_rng(sum(size))
    width, height = size
    x0, y0 = int(rng.integers(0, width // 2)), int(rng.integers(0, height // 2))
    x1, y1 = int(rng.integers(x0 + 20, width + 1)), int(rng.integers(y0 + 20, height + 1))
    image = Image.new("RGB", size)
    image.paste((255, 255, 255), (x0, y0, x1, y1))
    pixels = FULL.cut(image).mean(1) * 0.5 + 0.5
    layout = FULL.layout(size)
    grid = layout.grid(np.arange(len(layout.index)), 0)
    covered = grid.cover((x0, y0, x1, y1), rule="coverage")
    inside = grid.cover((0, 0, width, height), rule="coverage")
    gaps = []
    for number, share, seen in zip(layout.index[layout.index >= 0], covered, inside, strict=True):
        crop, token = divmod(int(number), 196)
        row, column = (28 * part for part in divmod(token, 14))
        patch = pixels[crop, row : min(row + 28, 378), column : min(column + 28, 378)].mean()
        gaps.append(patch - (share + (1 - seen) * 127 / 255))
    assert np.abs(gaps).max() < 0.12
    assert np.abs(gaps).mean() < 0.02


def test_golden_places_of_separators():
    """Those of the published code on two crops of 2 x 2 tokens."""
    tiny = Letterbox(side=42, patch=14, joined=2, canvases=((42, 42), (84, 42)))
    index = tiny.layout((100, 40)).index
    assert np.flatnonzero(index == SEPARATOR).tolist() == [2, 5, 11, 16]
    assert np.flatnonzero(index == VIEW_SEPARATOR).tolist() == [6]
    assert index.tolist() == [
        0, 1, -1, 2, 3, -1, -2, 4, 5, 8, 9, -1, 6, 7, 10, 11, -1,
    ]  # fmt: skip


def test_views_without_cropping():
    whole = dataclasses.replace(FULL, cropping=False)
    layout = whole.layout((1024, 500))
    assert whole.canvas((1024, 500)) == (384, 384)
    assert len(layout.index) == 421
    np.testing.assert_array_equal(layout.rect[:196], layout.rect[196:])
    assert layout.view.tolist() == [0] * 196 + [1] * 196
    crops = whole.cut(textured_image(1024, 500, 3))
    np.testing.assert_array_equal(crops[0], crops[1])


@pytest.mark.parametrize("size", [(1, 1200), (4000, 2)])
def test_images_of_which_nothing_would_be_left_are_refused_by_size(size):
    with pytest.raises(UserError, match=f"{size[0]}x{size[1]} pixels is too long"):
        FULL.layout(size)
