"""Qwen preprocessing: pixels equal transformers' PIL processor, cells found by painting."""

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from support.parity import assert_close, textured_image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
    Qwen2VLImageProcessorPil,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
    smart_resize as reference_resize,
)

from model_ports.errors import UserError
from model_ports.images.decode import to_rgb
from model_ports.images.qwen_pixels import QwenPixels
from model_ports.images.resize import smart_resize
from model_ports.images.window_patches import size_bucket, window_patches

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)
PIXELS = QwenPixels(factor=28, min_pixels=3136, max_pixels=150_000, mean=MEAN, std=STD)
QWEN3 = QwenPixels(
    factor=32, min_pixels=65536, max_pixels=150_000, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)
)
# Settings, and tokens along one side of a window.
MODELS = pytest.mark.parametrize(
    ("pixels", "side"),
    [(PIXELS, 4), (PIXELS, 3), (QWEN3, 1)],
    ids=["qwen2.5", "qwen2.5, other windows", "qwen3"],
)

SIZES = [
    (28, 28), (640, 480), (100, 1000), (1000, 100), (333, 500), (1, 199), (200, 1), (3, 5),
    (29, 57), (224, 224), (1111, 211), (56, 42), (70, 14), (1, 1),
]  # fmt: skip


def reference(image, pixels=PIXELS):
    """(patches [P, values] in block order, (rows, columns) of patches)."""
    processor = Qwen2VLImageProcessorPil(
        size={"shortest_edge": pixels.min_pixels, "longest_edge": pixels.max_pixels},
        patch_size=pixels.factor // 2,
        image_mean=pixels.mean,
        image_std=pixels.std,
    )
    out = processor(image, return_tensors="np")
    return out["pixel_values"], tuple(out["image_grid_thw"][0][1:])


def packed(image, pixels=PIXELS, side=4):
    patch = pixels.factor // 2
    return window_patches(pixels.pixels(to_rgb(image)), patch=patch, temporal=2, merge=2, side=side)


def raster(part):
    """The patches of a packed image in block order, with their (row, column)."""
    slots = (part.order[:, None] * 4 + np.arange(4)).reshape(-1)
    p = part.patches.reshape(-1, part.patches.shape[-1])[slots]
    return p, part.hw.reshape(-1, 2)[slots], part.valid.reshape(-1)[slots]


@pytest.mark.parametrize("size", SIZES)
@MODELS
def test_pixels_of_many_sizes(size, pixels, side):
    image = textured_image(*size, seed=sum(size))
    expected, (rows, columns) = reference(image, pixels)
    part = packed(image, pixels, side)
    patches, hw, valid = raster(part)
    assert valid.all()
    assert int(part.valid.sum()) == rows * columns
    assert_close(patches, expected, 1e-5, "pixels")
    blocks = np.indices((rows, columns)).reshape(2, rows // 2, 2, columns // 2, 2)
    assert np.array_equal(hw, blocks.transpose(1, 3, 2, 4, 0).reshape(-1, 2))
    assert not part.patches[~part.valid].any()
    patch = pixels.factor // 2
    assert pixels.canvas(size) == (columns * patch, rows * patch)


@MODELS
@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "LA", "CMYK", "1", "PA", "YCbCr", "EXIF"])
def test_pixels_of_other_colour_modes(mode, pixels, side):
    image = textured_image(90, 130, seed=8)
    if mode in ("RGBA", "LA"):
        alpha = textured_image(90, 130, seed=9).convert("L")
        image = image.convert(mode[:-1])
        image.putalpha(alpha)
    elif mode == "PA":
        image = image.quantize(64).convert("PA")
    elif mode == "EXIF":  # the tag says rotated; both ignore it
        image.getexif()[0x0112] = 6
    else:
        image = image.convert(mode)
    assert image.mode == ("RGB" if mode == "EXIF" else mode)
    expected, _ = reference(image, pixels)
    got = raster(packed(image, pixels, side))[0]
    assert_close(got, expected, 1e-5, f"pixels of mode {mode}")


def test_published_budget_with_and_without_upscaling():
    image = textured_image(640, 480, seed=0)
    for pixels, high, grid in ((PIXELS, 12_845_056, (34, 46)), (QWEN3, 16_777_216, (30, 40))):
        wide = dataclasses.replace(pixels, max_pixels=high)
        expected, found = reference(image, wide)
        assert found == grid  # 391 and 300 tokens
        assert len(packed(image, wide).order) == grid[0] * grid[1] // 4
        assert_close(raster(packed(image, wide))[0], expected, 1e-5)


@settings(max_examples=300, deadline=None)
@given(
    width=st.integers(1, 6000),
    height=st.integers(1, 6000),
    low=st.integers(1, 200_000),
    more=st.integers(0, 13_000_000),
)
def test_smart_resize_is_the_reference(width, height, low, more):
    budget = dict(factor=28, min_pixels=low, max_pixels=low + more)
    if max(width, height) / min(width, height) > 200:
        with pytest.raises(UserError, match=f"{width}x{height}.*aspect"):
            smart_resize((width, height), **budget)
        return
    expected = reference_resize(height, width, **budget)
    assert smart_resize((width, height), **budget) == expected[::-1]


def test_extreme_images_are_refused_with_their_size():
    for pixels in (PIXELS, QWEN3):
        for size in ((1000, 4), (1, 1000), (201, 1)):
            with pytest.raises(UserError, match="aspect ratio above 200"):
                pixels.pixels(Image.new("RGB", size))
    with pytest.raises(UserError, match="empty"):
        smart_resize((0, 5), factor=28, min_pixels=1, max_pixels=10)


PAINTED = [
    (333, 500), (640, 480), (90, 31), (60, 300), (17, 23), (13, 5), (56, 56), (57, 55),
    (29, 400), (501, 28), (427, 640), (199, 1), (224, 225),
]  # fmt: skip


@pytest.mark.parametrize("size", PAINTED)
@MODELS
def test_cells_by_painting(size, pixels, side):
    """A painted rectangle changes the tokens whose cells it overlaps, and no token further
    away than the reach of the bicubic filter."""
    rng = np.random.default_rng(sum(size))
    width, height = size
    frame = pixels.canvas(size)
    base = Image.new("RGB", size, (90, 90, 90))
    plain = packed(base, pixels, side)
    count = len(plain.order)
    grid = pixels.layout(size).grid(np.arange(5, 5 + count), 2)
    assert len(grid) == count
    assert set(grid.image) == {2}
    assert not grid.view.any()
    assert grid.slot[0] == 5
    # The cells tile the image: half-open, in raster order, areas add up.
    area = (grid.rect[:, 2] - grid.rect[:, 0]) * (grid.rect[:, 3] - grid.rect[:, 1])
    assert math.isclose(area.sum(), width * height)
    assert (np.lexsort((grid.rect[:, 0], grid.rect[:, 1])) == np.arange(count)).all()
    reach = [2 * max(1.0, stored / new) + 1e-6 for stored, new in zip(size, frame, strict=True)]
    for _ in range(12):
        x0, y0 = int(rng.integers(0, width)), int(rng.integers(0, height))
        x1 = int(rng.integers(x0 + 1, width + 1))
        y1 = int(rng.integers(y0 + 1, height + 1))
        painted = base.copy()
        painted.paste((250, 10, 200), (x0, y0, x1, y1))
        part = packed(painted, pixels, side)
        difference = np.abs(part.patches - plain.patches)
        difference = difference.reshape(-1, 4 * difference.shape[-1]).max(1)
        changed = difference[part.order] > 0
        inside = grid.cover((x0, y0, x1, y1), image=2) > 0
        # A sliver of a cell may vanish when the image shrinks, so covered means half a resized
        # pixel or more.
        margin = [0.5 * stored / new for stored, new in zip(size, frame, strict=True)]
        sure = _overlap(grid.rect, (x0, y0, x1, y1), margin)
        near = _overlap(grid.rect, (x0, y0, x1, y1), [-r for r in reach])
        assert inside.any()
        assert changed[sure].all()
        assert not changed[~near].any()
        assert (inside | ~sure).all()


def _overlap(rect, box, margin):
    """Cells that the box overlaps by more than a margin (negative: comes within it)."""
    x = np.minimum(rect[:, 2], box[2]) - np.maximum(rect[:, 0], box[0])
    y = np.minimum(rect[:, 3], box[3]) - np.maximum(rect[:, 1], box[1])
    return (x > margin[0]) & (y > margin[1])


def test_size_buckets_are_few_and_near():
    sizes = [size_bucket(n) for n in range(5000)]
    assert all(n <= s <= max(n * 1.25, n) for n, s in enumerate(sizes))
    assert len(set(sizes)) < 60


def write(folder, name="preprocessor_config.json", **changes):
    raw = {
        "min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14, "temporal_patch_size": 2,
        "merge_size": 2, "image_mean": list(MEAN), "image_std": list(STD),
        "image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2_5_VLProcessor",
    } | changes  # fmt: skip
    raw = {key: value for key, value in raw.items() if value != "absent"}
    nested = {"image_processor": raw, "processor_class": "Qwen2_5_VLProcessor"}
    (folder / name).write_text(json.dumps(nested if name.startswith("processor") else raw))
    return QwenPixels.read(folder, patch=14, merge=2, temporal=2)


def test_settings_of_published_and_saved_files(tmp_path):
    published = write(tmp_path)
    assert published == QwenPixels(28, 3136, 12845056, MEAN, STD)
    absent = dict(min_pixels="absent", max_pixels="absent")
    size = {"shortest_edge": 3136, "longest_edge": 12845056}
    assert write(tmp_path, size=size, **absent) == published
    # The reference lets min_pixels and max_pixels win.
    assert write(tmp_path, size={"shortest_edge": 1, "longest_edge": 2}) == published
    (tmp_path / "preprocessor_config.json").unlink()
    assert write(tmp_path, "processor_config.json", size=size, **absent) == published
    (tmp_path / "processor_config.json").unlink()
    (tmp_path / "preprocessor_config.json").write_text(
        Qwen2VLImageProcessorPil(size=size).to_json_string()
    )
    assert QwenPixels.read(tmp_path, patch=14, merge=2, temporal=2) == published


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (dict(patch_size=16), "patch_size"),
        (dict(merge_size=1), "merge_size"),
        (dict(temporal_patch_size=1), "temporal_patch_size"),
        (dict(do_resize=False), "do_resize"),
        (dict(resample=2), "resample"),
        (dict(rescale_factor=0.5), "rescale_factor"),
        (dict(do_center_crop=True), "do_center_crop"),
        (dict(new_option=1), "new_option"),
        (dict(image_mean=[0.5]), "image_mean"),
        (dict(image_std="absent"), "image_std"),
        (dict(min_pixels="absent"), "pixel budget"),
        (dict(min_pixels=9, max_pixels=3), "pixel budget"),
        (dict(image_processor_type="CLIPImageProcessor"), "CLIPImageProcessor"),
        (dict(image_processor_type="Glm46VImageProcessor"), "Glm46VImageProcessor"),
        (dict(image_std=[0.5, 0, 0.5]), "image_std"),
        (dict(size={"height": 3, "width": 4}), "height"),
    ],
)
def test_settings_that_it_cannot_honour_are_named(tmp_path, changes, named):
    with pytest.raises(UserError, match=named):
        write(tmp_path, **changes)


def test_missing_or_broken_settings_file(tmp_path):
    with pytest.raises(UserError, match="no preprocessor_config"):
        QwenPixels.read(tmp_path, patch=14, merge=2, temporal=2)
    (tmp_path / "preprocessor_config.json").write_text("{")
    with pytest.raises(UserError, match=r"preprocessor_config\.json cannot be read as JSON"):
        QwenPixels.read(tmp_path, patch=14, merge=2, temporal=2)
