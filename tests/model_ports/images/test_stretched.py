"""Magma's crops against torch, golden values, and cells verified by painting."""

import numpy as np
import pytest
import torch
from support.crops import SIZES, box_tokens, check_golden_pixels, check_painting
from support.magma import grid_of, reference_crops
from support.parity import textured_image

from model_ports.images.crops import SEPARATOR
from model_ports.images.resize import CLIP_MEAN, CLIP_STD
from model_ports.images.stretched import Stretched

FULL = Stretched(side=512, tokens=16, max_crops=4)
SMALL = Stretched(side=128, tokens=4, max_crops=4)
# Stretched so far that a source coordinate that is rounded once more moves pixels by 2e-5.
NARROW = [(23, 268), (78, 332), (269, 70), (22, 313)]
GOLDEN = {
    (640, 480): {
        "shape": (2, 3, 512, 512), "sum": 295150.014, "abs": 1410006.968,
        "at": [-1.79226, -1.7731, -0.34261, 1.00242, 1.56287],
    },
    (427, 640): {
        "shape": (2, 3, 512, 512), "sum": 294953.616, "abs": 1413283.346,
        "at": [-1.79226, -1.75937, -0.34261, -0.87165, -0.02977],
    },
}  # fmt: skip


@pytest.mark.parametrize("size", GOLDEN)
def test_golden_pixels(size):
    check_golden_pixels(FULL, size, GOLDEN[size])


def test_golden_tokens_of_a_box():
    box = (100, 120, 300, 260)
    for share in (0.0, 0.5):
        chosen = box_tokens(FULL, (640, 480), box, share=share)
        assert (len(chosen), chosen[:3], chosen[-1], sum(chosen)) == (
            50, [137, 138, 139], 278, 10375,
        )  # fmt: skip
    tall = (10.5, 300, 200, 630)
    every, most = (box_tokens(FULL, (427, 640), tall, share=share) for share in (0.0, 0.5))
    assert (len(every), sum(every), len(most), sum(most)) == (136, 53652, 112, 43176)


@pytest.mark.parametrize(
    ("size", "total", "separators"),
    [
        ((640, 480), 528, 16), ((480, 640), 544, 32), ((640, 427), 528, 16),
        ((427, 640), 544, 32), ((500, 333), 272, 16), ((640, 640), 1056, 32),
        ((1024, 768), 1056, 32), ((1920, 1080), 1056, 32), ((300, 1200), 816, 48),
    ],
)  # fmt: skip
def test_golden_counts(size, total, separators):
    index = FULL.layout(size).index
    assert (len(index), int((index == SEPARATOR).sum())) == (total, separators)
    rows = index.reshape(separators, -1)
    assert (rows[:, -1] == SEPARATOR).all()
    assert (rows[:, :-1] != SEPARATOR).all()


@pytest.mark.parametrize(
    ("crops", "sizes"), [(SMALL, [*SIZES, *NARROW]), (FULL, [(640, 480), (97, 310)])]
)
def test_pixels_equal_torch(crops, sizes):
    for size in sizes:
        image = textured_image(*size, seed=sum(size))
        expected, _ = reference_crops(image, crops.side)
        ours = crops.cut(image)
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours, expected.numpy(), rtol=0, atol=1e-5, err_msg=str(size))


def test_resizing_is_not_antialiased():
    """A shrunk image differs from its antialiased form by far more than rounding."""
    image = textured_image(500, 500, seed=3)
    small = Stretched(side=64, tokens=2, max_crops=1)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (CLIP_MEAN, CLIP_STD))
    pixels = torch.tensor(np.asarray(image)).permute(2, 0, 1).float() / 255
    smooth = torch.nn.functional.interpolate(
        ((pixels - mean) / std)[None], (64, 64), mode="bilinear", antialias=True
    )
    assert np.abs(small.cut(image) - smooth.numpy()).max() > 0.1


def test_canvases_equal_the_reference():
    rng = np.random.default_rng(1)
    sizes = [tuple(map(int, rng.integers(1, 2500, 2))) for _ in range(300)]
    sizes += [(a * k, b * k) for a, b in ((1, 1), (1, 2), (3, 1)) for k in range(20, 900, 23)]
    for size in sizes:
        columns, rows = grid_of(*size, 512)
        assert FULL.canvas(size) == (512 * columns, 512 * rows), size
        index = FULL.layout(size).index.reshape(16 * rows, 16 * columns + 1)
        # The first token of each crop stands where the crop lies.
        for crop in range(columns * rows):
            row, column = np.argwhere(index == 256 * crop)[0]
            assert (row, column) == (16 * (crop // columns), 16 * (crop % columns))


@pytest.mark.parametrize("size", SIZES)
def test_cells_verified_by_painting(size):
    for seed in range(2):
        check_painting(SMALL, size, seed, CLIP_MEAN, CLIP_STD)


def test_views():
    """The crops are views 1..; an image in one crop is whole, view 0."""
    assert set(FULL.layout((400, 400)).view) == {0}
    assert set(FULL.layout((640, 480)).view) == {1, 2}
    assert set(FULL.layout((1024, 768)).view) == {1, 2, 3, 4}
