"""LLaVA-NeXT's crops against transformers, golden values, and cells verified by painting."""

import dataclasses

import numpy as np
import pytest
import torch
from support.crops import SIZES, box_tokens, check_golden_pixels, check_painting
from support.llava import image_processor
from support.parity import textured_image
from transformers import LlavaNextProcessor
from transformers.image_processing_utils import select_best_resolution
from transformers.models.llava_next.modeling_llava_next import unpad_image

from model_ports.images.anyres import AnyRes
from model_ports.images.crops import SEPARATOR
from model_ports.images.resize import CLIP_MEAN, CLIP_STD
from model_ports.vlms.llava_next.config import PINPOINTS

FULL = AnyRes(side=336, tokens=24, pinpoints=PINPOINTS)
SMALL = AnyRes(side=112, tokens=4, pinpoints=tuple((a // 3, b // 3) for a, b in PINPOINTS))
ORIGINAL = dataclasses.replace(FULL, lineage="original")
GOLDEN = {
    (640, 480): {
        "shape": (5, 3, 336, 336), "sum": -312812.930, "abs": 1797224.682,
        "at": [-1.76307, -1.67548, -1.48022, -1.58701, -1.48022],
    },
    (427, 640): {
        "shape": (5, 3, 336, 336), "sum": -519549.123, "abs": 1883044.285,
        "at": [-1.76307, -1.70467, -1.48022, 1.62465, -1.48022],
    },
}  # fmt: skip


@pytest.mark.parametrize("size", GOLDEN)
def test_golden_pixels(size):
    check_golden_pixels(FULL, size, GOLDEN[size])


def test_golden_tokens_of_a_box():
    box = (100, 120, 300, 260)
    every = box_tokens(FULL, (640, 480), box)
    assert (len(every), every[:3], every[-1], sum(every)) == (239, [147, 148, 149], 1529, 238713)
    most = box_tokens(FULL, (640, 480), box, share=0.5)
    assert (len(most), most[:2], most[-1], sum(most)) == (213, [148, 149], 1528, 220103)
    tall = (10.5, 300, 200, 630)
    every, most = (box_tokens(FULL, (427, 640), tall, share=share) for share in (0.0, 0.5))
    assert (len(every), sum(every), len(most), sum(most)) == (546, 735891, 466, 632347)


@pytest.mark.parametrize(
    ("size", "total", "newlines"),
    [
        ((640, 480), 2340, 36), ((480, 640), 2352, 48), ((640, 427), 2144, 32),
        ((427, 640), 2160, 48), ((500, 333), 1464, 24), ((640, 640), 2928, 48),
        ((1024, 768), 2340, 36), ((1920, 1080), 1948, 28), ((300, 1200), 1944, 72),
    ],
)  # fmt: skip
def test_golden_counts(size, total, newlines):
    index = FULL.layout(size).index
    assert (len(index), int((index == SEPARATOR).sum())) == (total, newlines)
    # The whole image first, without newlines; then rows that end with one.
    assert index[:576].tolist() == list(range(576))
    rows = index[576:].reshape(newlines, -1)
    assert (rows[:, -1] == SEPARATOR).all()
    assert (rows[:, :-1] != SEPARATOR).all()


@pytest.mark.parametrize(("crops", "sizes"), [(SMALL, SIZES), (FULL, [(640, 480), (97, 310)])])
def test_pixels_equal_the_reference(crops, sizes):
    reference = image_processor(crops.side, crops.pinpoints)
    for size in sizes:
        image = textured_image(*size, seed=sum(size))
        expected = reference(images=[image], return_tensors="np")["pixel_values"][0]
        np.testing.assert_allclose(crops.cut(image), expected, rtol=0, atol=1e-5, err_msg=str(size))


def sizes_of(seed):
    """Random sizes, and squares and simple ratios, where ties fall."""
    rng = np.random.default_rng(seed)
    sizes = [tuple(map(int, rng.integers(1, 1500, 2))) for _ in range(250)]
    return sizes + [(a * k, b * k) for a, b in ((1, 1), (1, 2), (3, 1)) for k in range(20, 500, 23)]


def test_canvases_and_rows_equal_the_reference():
    """Canvas, kept tokens and their order; the number of tokens as in the reference processor."""
    counting = LlavaNextProcessor.__new__(LlavaNextProcessor)  # its __init__ wants torchvision
    counting.patch_size, counting.num_additional_image_tokens = 14, 0
    counting.image_processor = image_processor(336, PINPOINTS)
    for width, height in sizes_of(1):
        tall, wide = select_best_resolution((height, width), [list(p) for p in PINPOINTS])
        assert FULL.canvas((width, height)) == (wide, tall), (width, height)
        rows, columns = tall // 336 * 24, wide // 336 * 24
        numbers = torch.arange(576, 576 + rows * columns)
        grid = numbers.reshape(tall // 336, wide // 336, 24, 24).transpose(1, 2)
        kept = unpad_image(grid.reshape(1, rows, columns), (height, width))[0]
        ended = torch.nn.functional.pad(kept, (0, 1), value=SEPARATOR).flatten().tolist()
        index = FULL.layout((width, height)).index
        assert index[576:].tolist() == ended, (width, height)
        assert len(index) == counting._get_number_of_features(height, width, 336, 336)


def original_canvas(width, height):
    """LLaVA-NeXT's own reading: pinpoints are (width, height), the first of equals wins."""

    def key(item):
        number, (across, down) = item
        scale = min(across / width, down / height)
        used = min(int(width * scale) * int(height * scale), width * height)
        return -used, across * down - used, number

    return min(enumerate(PINPOINTS), key=key)[1]


def test_original_lineage():
    differ = 0
    for size in sizes_of(2):
        assert ORIGINAL.canvas(size) == original_canvas(*size)
        differ += ORIGINAL.canvas(size) != FULL.canvas(size)
        assert ORIGINAL.canvas(size) in {FULL.canvas(size), FULL.canvas(size)[::-1]}
    assert differ > 0
    # Squares of at most one crop tie: wide in transformers, tall in the original code.
    for side in (1, 100, 336):
        assert FULL.canvas((side, side)) == (672, 336)
        assert ORIGINAL.canvas((side, side)) == (336, 672)
    assert FULL.canvas((337, 337)) == ORIGINAL.canvas((337, 337)) == (672, 672)


def test_lineages_round_differently():
    """A fitted side that is a whole number of tokens but for the last bit of a float."""
    width, height = next(
        (w, h)
        for w in range(300, 700)
        for h in range(100, w)
        if FULL.canvas((w, h)) == ORIGINAL.canvas((w, h))
        and FULL._dropped((w, h)) != ORIGINAL._dropped((w, h))
    )
    columns, rows = (n // 14 for n in FULL.canvas((width, height)))
    exact = height * columns / width
    assert abs(exact - round(exact)) < 1e-6
    assert FULL._dropped((width, height))[1] == (rows - round(exact)) // 2
    assert ORIGINAL._dropped((width, height))[1] == (rows - round(exact) + 1) // 2


@pytest.mark.parametrize("size", SIZES)
def test_cells_verified_by_painting(size):
    for seed in range(2):
        check_painting(SMALL, size, seed, CLIP_MEAN, CLIP_STD)


def test_views_and_padding():
    """A letterboxed image: the kept rows end less than one row off its border."""
    size = (640, 430)
    layout = FULL.layout(size)
    assert FULL.canvas(size) == (672, 672)
    assert FULL.fitted(size) == (672, 452)
    assert sorted(set(layout.view)) == [0, 1, 2, 3, 4]
    tiles = layout.rect[layout.view > 0]
    step = 14 * 640 / 672
    assert (tiles[:, 0].min(), tiles[:, 2].max()) == (0, 640)
    assert -step < tiles[:, 1].min() < step
    assert 430 - step < tiles[:, 3].max() < 430 + step
    np.testing.assert_allclose(tiles[:, 2] - tiles[:, 0], step)


def test_extreme_shapes_keep_newlines_only():
    """Where no column is left, the reference keeps the rows' newlines; so do we."""
    layout = FULL.layout((1, 5000))
    assert (layout.index[576:] == SEPARATOR).all()
    assert len(layout.index) == 576 + 24
    assert len(layout.rect) == len(layout.view) == 576
