"""Every image that Pillow opens becomes RGB, or an error that names it."""

import io

import numpy as np
import pytest
from PIL import Image
from support.parity import textured_image

from model_ports.errors import UserError
from model_ports.images.decode import load_image, to_rgb

RGB = textured_image(37, 23, seed=1)
GREY = np.asarray(RGB.convert("L"))


def with_alpha(mode):
    alpha = Image.fromarray(np.linspace(0, 255, GREY.size).astype(np.uint8).reshape(GREY.shape))
    base = RGB.convert("RGB" if mode == "RGBA" else "L")
    base.putalpha(alpha)
    assert base.mode == mode
    return base


def over_white(rgb, alpha):
    a = alpha[..., None].astype(np.float64) / 255
    return rgb * a + 255 * (1 - a)


@pytest.mark.parametrize("mode", ["RGB", "L", "1", "P", "CMYK", "YCbCr", "HSV", "RGBX"])
def test_opaque_modes_follow_pillow(mode):
    image = RGB.convert(mode)
    got = to_rgb(image)
    assert (got.mode, got.size) == ("RGB", RGB.size)
    assert np.array_equal(got, image.convert("RGB"))
    if mode in ("L", "1"):
        assert np.array_equal(np.asarray(got)[..., 0], np.asarray(image.convert("L")))


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_alpha_is_composited_over_white(mode):
    image = with_alpha(mode)
    full = np.asarray(image.convert("RGBA"), np.float64)
    expected = over_white(full[..., :3], full[..., 3])
    assert np.abs(np.asarray(to_rgb(image), np.float64) - expected).max() <= 1


def test_palette_with_alpha_and_transparent_colours():
    pa = Image.new("PA", (2, 1))
    pa.putpalette([10, 20, 30, 200, 100, 50])
    pa.putdata([(0, 255), (1, 0)])
    assert np.asarray(to_rgb(pa)).tolist() == [[[10, 20, 30], [255, 255, 255]]]
    p = Image.new("P", (2, 1))
    p.putpalette([10, 20, 30, 200, 100, 50])
    p.putdata([0, 1])
    p.info["transparency"] = 0
    assert np.asarray(to_rgb(p)).tolist() == [[[255, 255, 255], [200, 100, 50]]]
    rgb = Image.new("RGB", (2, 1), (1, 2, 3))
    rgb.putpixel((1, 0), (9, 9, 9))
    rgb.info["transparency"] = (9, 9, 9)
    assert np.asarray(to_rgb(rgb)).tolist() == [[[1, 2, 3], [255, 255, 255]]]


@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
def test_sixteen_bit_grey_keeps_its_high_byte(dtype, tmp_path):
    wide = (GREY.astype(np.uint32) * 257).astype(dtype)
    image = Image.fromarray(wide)
    assert image.mode in ("I;16", "I")
    assert np.array_equal(np.asarray(to_rgb(image))[..., 1], GREY)
    if dtype == np.uint16:
        image.save(tmp_path / "wide.png")
        assert np.array_equal(np.asarray(load_image(tmp_path / "wide.png"))[..., 0], GREY)


def test_grey_beyond_sixteen_bits_is_refused_by_name():
    with pytest.raises(UserError, match=r"map\.tif.*16-bit"):
        to_rgb(Image.fromarray(np.full((3, 3), 70000, np.int32)), "map.tif")


def test_orientation_tag_is_ignored(tmp_path):
    path = tmp_path / "turned.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees to show
    RGB.save(path, exif=exif, quality=95)
    assert load_image(path).size == RGB.size


def test_first_frame_of_an_animation(tmp_path):
    path = tmp_path / "moving.gif"
    frames = [Image.new("RGB", (5, 4), colour) for colour in ("red", "blue")]
    frames[0].save(path, save_all=True, append_images=frames[1:])
    assert np.asarray(load_image(path))[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"])
def test_truncated_files_are_refused_by_name(kind, tmp_path):
    buffer = io.BytesIO()
    textured_image(120, 90, seed=2).save(buffer, kind)
    path = tmp_path / f"cut.{kind.lower()}"
    path.write_bytes(buffer.getvalue()[: len(buffer.getvalue()) // 2])
    with pytest.raises(UserError, match=r"cut\."):
        load_image(path)
    whole = load_image(buffer.getvalue(), "whole")
    assert whole.size == (120, 90)
    lazy = None
    try:
        lazy = Image.open(path)
    except OSError:  # some formats notice when they open the file
        return
    with lazy, pytest.raises(UserError, match=r"cut\."):
        to_rgb(lazy)


def test_broken_missing_and_foreign_files(tmp_path):
    with pytest.raises(UserError, match=r"nowhere\.png.*no such"):
        load_image(tmp_path / "nowhere.png")
    (tmp_path / "text.png").write_text("no image")
    with pytest.raises(UserError, match=r"text\.png"):
        load_image(tmp_path / "text.png")
    buffer = io.BytesIO()
    RGB.save(buffer, "PNG")
    data = bytearray(buffer.getvalue())
    data[60:200] = bytes(140)
    (tmp_path / "flipped.png").write_bytes(data)
    with pytest.raises(UserError, match=r"flipped\.png"):
        load_image(tmp_path / "flipped.png")
    with pytest.raises(UserError, match="7 bytes"):
        load_image(b"1234567")
    with pytest.raises(UserError, match="empty"):
        to_rgb(Image.new("RGB", (0, 4)))
