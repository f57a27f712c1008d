"""Dynamic tiling against transformers' PIL processor, and cells verified by painting."""

import numpy as np
import pytest
from PIL import Image
from support.parity import textured_image
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import (
    GotOcr2ImageProcessorPil,
    get_optimal_tiled_canvas,
)

from model_ports.images.decode import to_rgb
from model_ports.images.resize import IMAGENET_MEAN, IMAGENET_STD
from model_ports.images.tiling import Tiling

FULL = Tiling(side=448, tokens=16, min_tiles=1, max_tiles=12, thumbnail=True)
SMALL = Tiling(side=112, tokens=4, min_tiles=1, max_tiles=12, thumbnail=True)


def reference_pixels(image, tiling):
    processor = GotOcr2ImageProcessorPil(
        size={"height": tiling.side, "width": tiling.side},
        crop_to_patches=True,
        min_patches=tiling.min_tiles,
        max_patches=tiling.max_tiles,
        image_mean=list(IMAGENET_MEAN),
        image_std=list(IMAGENET_STD),
    )
    return np.stack(processor(images=[image], return_tensors="np")["pixel_values"])


@pytest.mark.parametrize(
    ("size", "tiles"),
    [
        ((640, 480), 13), ((480, 640), 13), ((448, 448), 1), ((1000, 300), 4), ((37, 500), 13),
    ],
)  # fmt: skip
def test_pixels_equal_the_reference_at_full_size(size, tiles):
    image = textured_image(*size, seed=sum(size))
    ours = FULL.cut(image)
    assert ours.shape == (tiles, 3, 448, 448)
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, reference_pixels(image, FULL), rtol=0, atol=1e-5)


SIZES = [
    (1, 1), (3, 90), (112, 112), (113, 111), (200, 100), (224, 224), (225, 224), (256, 384),
    (333, 500), (500, 333), (600, 601), (97, 801),
]  # fmt: skip


@pytest.mark.parametrize("limits", [(1, 12), (1, 6), (2, 5), (1, 1)])
@pytest.mark.parametrize("size", SIZES)
def test_pixels_equal_the_reference(size, limits):
    tiling = Tiling(side=112, tokens=4, min_tiles=limits[0], max_tiles=limits[1], thumbnail=True)
    image = textured_image(*size, seed=sum(size))
    ours = tiling.cut(image)
    np.testing.assert_allclose(ours, reference_pixels(image, tiling), rtol=0, atol=1e-5)
    assert len(ours) * tiling.tokens**2 == len(tiling.layout(image.size).index)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "LA", "CMYK", "1", "YCbCr"])
def test_pixels_of_other_modes(mode):
    image = textured_image(250, 170, 5)
    if mode in {"RGBA", "LA"}:
        image.putalpha(textured_image(250, 170, 6).convert("L"))
    image = image.convert(mode)
    expected = reference_pixels(image, SMALL)
    np.testing.assert_allclose(SMALL.cut(to_rgb(image)), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("high", [1, 6, 12])
def test_grids_equal_the_reference(high):
    rng = np.random.default_rng(high)
    tiling = Tiling(side=448, tokens=16, min_tiles=1, max_tiles=high, thumbnail=True)
    sizes = [tuple(map(int, rng.integers(1, 2000, 2))) for _ in range(400)]
    # Exact ties of the aspect ratio, on both sides of the area rule.
    sizes += [
        (a * k, b * k) for a, b in ((1, 1), (1, 2), (3, 1), (3, 2)) for k in range(50, 800, 9)
    ]
    for width, height in sizes:
        expected = get_optimal_tiled_canvas((height, width), (448, 448), 1, high)
        assert tiling.grid((width, height)) == expected, (width, height)


def test_without_thumbnail():
    tiling = Tiling(side=112, tokens=4, min_tiles=1, max_tiles=6, thumbnail=False)
    image = textured_image(300, 200, 1)
    assert len(tiling.cut(image)) == 6
    assert set(tiling.layout(image.size).view) == {1, 2, 3, 4, 5, 6}


def brightness(image, tiling):
    """Mean brightness, 0 to 1, of every visual token's block of pixels, in token order."""
    pixels = tiling.cut(image) * np.reshape(IMAGENET_STD, (3, 1, 1))
    pixels = (pixels + np.reshape(IMAGENET_MEAN, (3, 1, 1))).mean(1)
    n, block = tiling.tokens, tiling.side // tiling.tokens
    return pixels.reshape(-1, n, block, n, block).mean((2, 4)).ravel()


PAINTED = [
    (640, 480), (300, 900), (200, 210), (1100, 260), (448, 449), (480, 640), (333, 500), (500, 333),
    (97, 801), (1000, 120), (256, 384), (601, 600), (1300, 1250),
]  # fmt: skip


@pytest.mark.parametrize("size", PAINTED)
@pytest.mark.parametrize("seed", range(3))
def test_cells_verified_by_painting(size, seed):
    """A white box on black brightens every token's block by the share that the box covers."""
    rng = np.random.default_rng(seed)
    width, height = size
    x0, y0 = int(rng.integers(0, width // 2)), int(rng.integers(0, height // 2))
    x1, y1 = int(rng.integers(x0 + 20, width + 1)), int(rng.integers(y0 + 20, height + 1))
    image = Image.new("RGB", size)
    image.paste((255, 255, 255), (x0, y0, x1, y1))
    layout = SMALL.layout(size)
    count = len(layout.index)
    grid = layout.grid(np.arange(5, 5 + count), 2)
    assert len(grid) == count
    seen = brightness(image, SMALL)
    covered = grid.cover((x0, y0, x1, y1), rule="coverage", image=2)
    # Resampling blurs the edges of the box by a few pixels of 28.
    assert np.abs(seen - covered).max() < 0.12
    assert np.abs(seen - covered).mean() < 0.02
    touched = grid.cover((x0, y0, x1, y1), rule="any", image=2)
    assert (touched[seen > 0.5] == 1).all()
    assert (seen[touched == 0] < 0.12).all()


@pytest.mark.parametrize("size", [(640, 480), (100, 100), (90, 1000)])
def test_views_tile_the_image(size):
    grid = SMALL.layout(size)
    columns, rows = SMALL.grid(size)
    tiles = columns * rows
    assert sorted(set(grid.view)) == ([0] if tiles == 1 else list(range(tiles + 1)))
    # The thumbnail comes last; every pixel lies in one cell of it and in one cell of a tile.
    assert (grid.view[-(SMALL.tokens**2) :] == 0).all()
    area = (grid.rect[:, 2] - grid.rect[:, 0]) * (grid.rect[:, 3] - grid.rect[:, 1])
    for views in ([0], range(1, tiles + 1)) if tiles > 1 else ([0],):
        chosen = np.isin(grid.view, list(views))
        np.testing.assert_allclose(area[chosen].sum(), size[0] * size[1])
        whole = grid.rect[chosen]
        assert whole[:, :2].min() == 0
        np.testing.assert_allclose(whole[:, 2:].max(0), size)
