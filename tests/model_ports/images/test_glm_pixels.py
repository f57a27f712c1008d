"""GLM-4V preprocessing: pixels equal transformers' PIL processor, cells found by painting."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from support.parity import assert_close, textured_image
from transformers.models.glm46v.image_processing_pil_glm46v import (
    Glm46VImageProcessorPil,
)
from transformers.models.glm46v.image_processing_pil_glm46v import (
    smart_resize as reference_resize,
)

from model_ports.errors import UserError
from model_ports.images.decode import to_rgb
from model_ports.images.glm_pixels import GlmPixels
from model_ports.images.window_patches import window_patches

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)
PIXELS = GlmPixels(factor=28, min_pixels=12544, max_pixels=300_000, mean=MEAN, std=STD)

SIZES = [
    (28, 28), (640, 480), (100, 1000), (1000, 100), (333, 500), (1, 199), (200, 1), (3, 5),
    (29, 57), (224, 224), (1111, 211), (56, 42), (70, 14), (1, 1), (20, 27), (13, 900),
]  # fmt: skip


def reference(image, low=12544, high=300_000):
    """(patches [P, 1176], (rows, columns) of patches)."""
    processor = Glm46VImageProcessorPil(
        size={"shortest_edge": low, "longest_edge": high}, image_mean=MEAN, image_std=STD
    )
    out = processor(image, return_tensors="np")
    return out["pixel_values"], tuple(out["image_grid_thw"][0][1:])


def packed(image, pixels=PIXELS):
    """[V, 4, 1176], tokens in raster order."""
    part = window_patches(pixels.pixels(to_rgb(image)), patch=14, temporal=2, merge=2, side=1)
    return part.patches[part.order]


@pytest.mark.parametrize("size", SIZES)
def test_pixels_of_many_sizes(size):
    image = textured_image(*size, seed=sum(size))
    expected, (rows, columns) = reference(image)
    assert PIXELS.canvas(size) == (columns * 14, rows * 14)
    assert_close(packed(image).reshape(-1, 1176), expected, 1e-5, "pixels")


def colour(mode):
    image = textured_image(90, 130, seed=8)
    if mode == "RGBA":
        image.putalpha(textured_image(90, 130, seed=9).convert("L"))
        return image
    if mode == "EXIF":  # the tag says rotated; both ignore it
        image.getexif()[0x0112] = 6
        return image
    return image.convert(mode)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "EXIF"])
def test_pixels_of_other_colour_modes(mode):
    image = colour(mode)
    expected, _ = reference(image)
    assert_close(packed(image).reshape(-1, 1176), expected, 1e-5, f"pixels of mode {mode}")


def test_published_budget_counts_two_frames():
    wide = GlmPixels(factor=28, min_pixels=12544, max_pixels=9_633_792, mean=MEAN, std=STD)
    assert wide.canvas((640, 480)) == (644, 476)  # 391 tokens
    assert wide.canvas((3000, 2000)) == reference_resize(2, 2000, 3000, max_pixels=9_633_792)[::-1]
    width, height = wide.canvas((3000, 2000))
    assert width * height <= 9_633_792 / 2
    # Below the budget of one frame, above half of it.
    assert wide.canvas((84, 84)) == (84, 84)
    assert wide.canvas((56, 84)) == (84, 112)


@settings(max_examples=300, deadline=None)
@given(
    width=st.one_of(st.integers(1, 60), st.integers(1, 6000)),
    height=st.one_of(st.integers(1, 60), st.integers(1, 6000)),
    low=st.integers(1, 200_000),
    more=st.integers(0, 13_000_000),
)
def test_frame_is_the_reference(width, height, low, more):
    pixels = GlmPixels(factor=28, min_pixels=low, max_pixels=low + more, mean=MEAN, std=STD)
    try:
        expected = reference_resize(2, height, width, min_pixels=low, max_pixels=low + more)
    except ValueError:
        with pytest.raises(UserError, match=f"{width}x{height}.*aspect"):
            pixels.canvas((width, height))
        return
    assert pixels.canvas((width, height)) == expected[::-1]


def test_shapes_that_the_reference_refuses_are_named_by_their_stored_size():
    for size in ((1, 1000), (1000, 4), (201, 1)):
        with pytest.raises(ValueError, match="aspect ratio"):
            reference(Image.new("RGB", size))
        with pytest.raises(UserError, match=f"{size[0]}x{size[1]}.*aspect ratio above 200"):
            PIXELS.pixels(Image.new("RGB", size))


PAINTED = [
    (333, 500), (640, 480), (90, 31), (60, 300), (17, 23), (13, 5), (56, 56), (57, 55),
    (29, 400), (501, 28), (427, 640), (199, 1), (224, 225),
]  # fmt: skip


@pytest.mark.parametrize("size", PAINTED)
def test_cells_by_painting(size):
    """A painted rectangle changes the tokens whose cells it overlaps, and none beyond the reach
    of the bicubic filter."""
    rng = np.random.default_rng(sum(size))
    base = Image.new("RGB", size, (90, 90, 90))
    plain = packed(base)
    count = len(plain)
    grid = PIXELS.layout(size).grid(np.arange(5, 5 + count), 2)
    assert len(grid) == count
    area = (grid.rect[:, 2] - grid.rect[:, 0]) * (grid.rect[:, 3] - grid.rect[:, 1])
    assert math.isclose(area.sum(), size[0] * size[1])
    scale = np.array(size) / PIXELS.canvas(size)
    for _ in range(12):
        low = rng.integers(0, size)
        high = rng.integers(low + 1, np.array(size) + 1)
        painted = base.copy()
        painted.paste((250, 10, 200), (*map(int, low), *map(int, high)))
        changed = np.abs(packed(painted) - plain).max((1, 2)) > 0
        overlap = np.minimum(grid.rect[:, 2:], high) - np.maximum(grid.rect[:, :2], low)
        inside = grid.cover((*low, *high), image=2) > 0
        # A sliver of a cell may vanish when the image shrinks: half a resized pixel is sure.
        sure = (overlap > 0.5 * scale).all(1)
        near = (overlap > -2 * np.maximum(scale, 1) - 1e-6).all(1)
        assert inside.any()
        assert changed[sure].all()
        assert not changed[~near].any()
        assert (inside | ~sure).all()


def test_settings_of_published_and_saved_files(tmp_path):
    raw = {
        "size": {"shortest_edge": 12544, "longest_edge": 9633792}, "do_rescale": True,
        "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2, "image_mean": list(MEAN),
        "image_std": list(STD), "image_processor_type": "Glm46VImageProcessor",
        "processor_class": "Glm46VProcessor",
    }  # fmt: skip
    path = tmp_path / "preprocessor_config.json"
    shape = dict(patch=14, merge=2, temporal=2)
    expected = GlmPixels(28, 12544, 9633792, MEAN, STD, frames=2)
    path.write_text(json.dumps(raw))
    assert GlmPixels.read(tmp_path, **shape) == expected
    path.write_text(Glm46VImageProcessorPil(size=raw["size"]).to_json_string())
    assert GlmPixels.read(tmp_path, **shape) == expected
    path.write_text(json.dumps({k: v for k, v in raw.items() if k != "size"}))
    with pytest.raises(UserError, match="pixel budget"):
        GlmPixels.read(tmp_path, **shape)
