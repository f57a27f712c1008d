"""A study may say what a model's box coordinates span."""

from typing import Any

import pytest

from model_ports.errors import UserError
from model_ports.port import Model
from model_ports.vlms.internvl import PORT as INTERNVL
from model_ports.vlms.qwen2_5_vl import PORT as QWEN
from vrh_jax.answers import read_box
from vrh_jax.config import ModelSettings
from vrh_jax.study.models import with_frame


def model(port: Any) -> Model:
    nothing: Any = None
    return Model("m", port, nothing, nothing, {}, nothing, "")


def settings(frame: Any) -> ModelSettings:
    return ModelSettings(name="m", source="x", box_frame=frame)


def test_the_frame_replaces_the_ports():
    plain = model(INTERNVL)
    assert with_frame(plain, settings(None)) is plain
    square = with_frame(plain, settings("padded_square")).port.box
    assert square is not None
    assert square.template == INTERNVL.box.template
    assert read_box("[[250, 250, 500, 750]]", square, (640, 480), (0, 0))[0] == (160, 80, 320, 400)
    assert INTERNVL.box.frame == "image"


def test_pixels_have_no_other_frame():
    with pytest.raises(UserError, match=r"models\.m\.box_frame = 'padded_square'.*leave box_frame"):
        with_frame(model(QWEN), settings("padded_square"))
