"""NaFlex images against transformers' processor and the golden values of the published one; cells
verified by painting."""

from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.crops import SIZES, box_tokens, check_golden_pixels
from support.parity import textured_image
from support.phi4_rv import pixels_of

from model_ports.errors import UserError
from model_ports.images.naflex import Naflex

FULL = Naflex(patch=16, low=256, high=3600)
SMALL = Naflex(patch=8, low=6, high=40)
# Columns and rows, from the published preprocessor.
GRIDS = {
    (640, 480): (40, 30), (480, 640): (30, 40), (640, 427): (39, 26), (427, 640): (26, 39),
    (500, 333): (31, 20), (640, 640): (40, 40), (1024, 768): (64, 48), (1920, 1080): (80, 45),
    (300, 1200): (18, 72),
}  # fmt: skip
# Sum, sum of magnitudes and five values of the pattern.
GOLDEN = {
    (640, 480): (1200, -47.171, 462493.480, [-1.0, -0.68627, -0.74902, 0.38039, 0.67843]),
    (427, 640): (1014, -56.843, 369289.063, [-1.0, -0.68627, -0.66275, 0.3098, -0.2]),
}
# (image, box) -> count, first tokens, last token and sum of tokens; any overlap, then over half.
BOXES = {
    ((640, 480), (100, 120, 300, 260)): (
        (130, [286, 287, 288], 658, 61360), (104, [326, 327], 618, 49088),
    ),
    ((427, 640), (10.5, 300, 200, 630)): ((273, [], None, 200382), (220, [], None, 158620)),
}  # fmt: skip


@pytest.mark.parametrize("size", GRIDS)
def test_golden_grids(size):
    assert FULL.grid(size) == GRIDS[size]
    assert FULL.canvas(size) == tuple(16 * side for side in GRIDS[size])


@pytest.mark.parametrize("size", GOLDEN)
def test_golden_pixels(size):
    patches, total, magnitude, at = GOLDEN[size]
    golden = {"shape": (patches, 768), "sum": total, "abs": magnitude, "at": at}
    check_golden_pixels(FULL, size, golden)


@pytest.mark.parametrize(("size", "box"), BOXES)
def test_golden_tokens_of_a_box(size, box):
    for share, (count, first, last, total) in zip((0.0, 0.5), BOXES[size, box], strict=True):
        tokens = box_tokens(FULL, size, box, share)
        assert (len(tokens), sum(tokens)) == (count, total)
        assert tokens[: len(first)] == first
        assert last in {None, tokens[-1]}


@pytest.mark.parametrize("naflex", [FULL, SMALL], ids=["published", "small"])
@pytest.mark.parametrize("size", [*SIZES, (1, 1), (3, 90), (2000, 15), (257, 255)])
def test_pixels_equal_the_reference(size, naflex):
    image = textured_image(*size, seed=sum(size))
    want = pixels_of([image], naflex.patch, naflex.low, naflex.high)
    ours = naflex.cut(image)
    assert ours.dtype == np.float32
    rows, columns = want["spatial_shapes"][0].tolist()
    assert naflex.grid(size) == (columns, rows)
    assert want["pixel_attention_mask"][0].sum() == len(ours) == rows * columns <= naflex.high
    got = want["pixel_values"][0, : len(ours)].numpy()
    np.testing.assert_allclose(ours, got, rtol=0, atol=1e-6)


def test_grids_of_many_sizes_equal_the_reference():
    from transformers.models.siglip2.image_processing_pil_siglip2 import (
        get_image_size_for_max_num_patches,
    )

    rng = np.random.default_rng(0)
    for width, height in np.exp(rng.uniform(0, np.log(3000), (60, 2))).astype(int).tolist():
        budget = min(max((width // 16) * (height // 16), 256), 3600)
        want = get_image_size_for_max_num_patches(height, width, 16, budget)
        assert FULL.canvas((width, height)) == want[::-1], (width, height)


@pytest.mark.parametrize("naflex", [FULL, SMALL], ids=["published", "small"])
@pytest.mark.parametrize("size", SIZES)
def test_cells_by_painting(size, naflex):
    """A white box on black brightens every token's patch by the share that the box covers."""
    rng = np.random.default_rng(sum(size))
    width, height = size
    x0, y0 = int(rng.integers(0, width // 2)), int(rng.integers(0, height // 2))
    x1, y1 = int(rng.integers(x0 + 18, width + 1)), int(rng.integers(y0 + 18, height + 1))
    image = Image.new("RGB", size)
    image.paste((255, 255, 255), (x0, y0, x1, y1))
    seen = naflex.cut(image).mean(1) / 2 + 0.5
    grid = naflex.layout(size).grid(np.arange(7, 7 + len(seen)), 3)
    covered = grid.cover((x0, y0, x1, y1), rule="coverage", image=3)
    assert np.abs(seen - covered).max() < 0.12
    area = (grid.rect[:, 2] - grid.rect[:, 0]) * (grid.rect[:, 3] - grid.rect[:, 1])
    assert area.sum() == pytest.approx(width * height)


def test_cells_are_row_major():
    layout = Naflex(patch=10, low=1, high=4).layout((50, 40))
    expected = [[0, 0, 25, 20], [25, 0, 50, 20], [0, 20, 25, 40], [25, 20, 50, 40]]
    assert layout.rect.tolist() == expected
    assert layout.index.tolist() == [0, 1, 2, 3]
    assert not layout.view.any()


def test_values_of_a_patch_are_by_row_column_channel():
    image = Image.fromarray(np.arange(4 * 4 * 3, dtype=np.uint8).reshape(4, 4, 3))
    patches = Naflex(patch=2, low=4, high=4).cut(image)
    expected = np.array([0, 1, 2, 3, 4, 5, 12, 13, 14, 15, 16, 17]) / 127.5 - 1
    np.testing.assert_allclose(patches[0], expected, atol=1e-6)


@pytest.mark.parametrize("size", [(0, 5), (5, 0)])
def test_empty_images_are_refused(size: Any):
    with pytest.raises(UserError, match="empty"):
        FULL.grid(size)
