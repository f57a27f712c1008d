"""The stretched square against transformers' PIL processor; cells verified by painting."""

import numpy as np
import pytest
from support.crops import SIZES, box_tokens, check_golden_pixels, check_painting
from support.paligemma import pixels_of
from support.parity import textured_image

from model_ports.images.decode import to_rgb
from model_ports.images.resize import HALF
from model_ports.images.square import Square

FULL = Square(side=448, tokens=32)
SHAPE = (1, 3, 448, 448)
# Sum, sum of magnitudes and five values of the pattern, from the published preprocessor.
GOLDEN = {
    (640, 480): (-95.245, 288469.076, [-0.99216, -0.96078, -0.67843, 0.70196, 0.6549]),
    (427, 640): (-163.708, 288722.150, [-0.99216, -0.96863, -0.67843, -0.17647, -0.22353]),
}
# (image, box) -> count, first tokens, last token and sum of tokens; any overlap, then over half.
BOXES = {
    ((640, 480), (100, 120, 300, 260)): (
        (100, [261, 262, 263], 558, 40950), (90, [261, 262], 526, 35415),
    ),
    ((427, 640), (10.5, 300, 200, 630)): ((255, [], None, 189465), (224, [], None, 162960)),
}  # fmt: skip


@pytest.mark.parametrize("size", GOLDEN)
def test_golden_pixels(size):
    total, magnitude, at = GOLDEN[size]
    golden = {"shape": SHAPE, "sum": total, "abs": magnitude, "at": at}
    check_golden_pixels(FULL, size, golden)


@pytest.mark.parametrize(("size", "box"), BOXES)
def test_golden_tokens_of_a_box(size, box):
    for share, (count, first, last, total) in zip((0.0, 0.5), BOXES[size, box], strict=True):
        tokens = box_tokens(FULL, size, box, share)
        assert (len(tokens), sum(tokens)) == (count, total)
        assert tokens[: len(first)] == first
        assert last in {None, tokens[-1]}


@pytest.mark.parametrize("square", [FULL, Square(side=224, tokens=16)], ids=["448", "224"])
@pytest.mark.parametrize("size", [*SIZES, (1, 1), (3, 90)])
def test_pixels_equal_the_reference(size, square):
    image = textured_image(*size, seed=sum(size))
    ours = square.cut(image)
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours[0], pixels_of(image, square.side), rtol=0, atol=1e-6)
    assert square.canvas(size) == (square.side, square.side)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "LA", "CMYK", "1"])
def test_pixels_of_other_modes(mode):
    image = textured_image(250, 170, 5).convert(mode)
    ours = FULL.cut(to_rgb(image))[0]
    np.testing.assert_allclose(ours, pixels_of(to_rgb(image), 448), rtol=0, atol=1e-6)


@pytest.mark.parametrize("square", [FULL, Square(side=224, tokens=16)], ids=["448", "224"])
@pytest.mark.parametrize("size", SIZES)
def test_cells_by_painting(size, square):
    check_painting(square, size, sum(size), HALF, HALF)


def test_cells_are_row_major_and_tile_the_image():
    rect = Square(side=28, tokens=2).layout((100, 60)).rect
    expected = [[0, 0, 50, 30], [50, 0, 100, 30], [0, 30, 50, 60], [50, 30, 100, 60]]
    assert rect.tolist() == expected
