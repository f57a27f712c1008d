"""`vrh bench data` measures the work that a study does."""

import json

import numpy as np
import pytest
from PIL import Image

from model_ports.images.decode import load_image
from vrh_jax.bench import data
from vrh_jax.cli import main


def test_generated_images_are_the_same_every_time(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir(), second.mkdir()
    paths = data.generate_images(first, 7)
    again = data.generate_images(second, 3)
    assert [p.read_bytes() for p in paths[:3]] == [p.read_bytes() for p in again]
    assert load_image(paths[2]).size == (480, 640)
    kilobytes = [p.stat().st_size / 1000 for p in paths]
    assert 40 < min(kilobytes) <= max(kilobytes) < 400


def test_the_work_is_the_preprocessing_of_qwen(tmp_path):
    Image.new("RGB", (640, 480), (124, 116, 104)).save(tmp_path / "a.png")
    found = data.prepare_file(tmp_path / "a.png")
    assert len(found.order) == 23 * 17  # 644 x 476 pixels, in tokens of 28
    assert found.patches.shape[1:] == (64, 1176)
    assert np.abs(found.patches[found.valid]).max() < 0.05  # the mean colour becomes 0


def test_scaling_counts_every_image_for_every_number_of_workers(tmp_path):
    paths = [tmp_path / str(i) for i in range(5)]
    seen = []
    found = data.scaling(paths, [2, 0, 1], 3, work=seen.append)
    assert [s.workers for s in found] == [0, 2, 1]
    assert len(seen) == 3 * 3 * 5
    assert found[0].ratio == found[0].machine == 1.0
    assert all(s.samples_per_s > 0 for s in found)


def test_the_command(tmp_path, capsys):
    arguments = ["bench", "data", "--images", "2", "--rounds", "1", "--workers", "1,2"]
    assert main([*arguments, "--json", "--device-rate", "50"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["source"], found["images"]) == ("generated", 2)
    assert [s["workers"] for s in found["scaling"]] == [0, 1, 2]
    per_core = found["samples_per_s_per_core"]
    assert per_core == pytest.approx(1000 / sum(found["milliseconds"].values()))
    assert found["cores_needed"] == pytest.approx(50 / per_core)
    data.generate_images(tmp_path, 1)
    (tmp_path / "below").mkdir()
    Image.new("L", (30, 40)).save(tmp_path / "below" / "b.png")
    assert main([*arguments[:2], str(tmp_path), *arguments[2:]]) == 0
    assert "samples/s per core" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "two"], "numbers with commas"),
        (["--images", "0"], "at least 1"),
        (["FOLDER"], "no images"),
        (["BROKEN"], "broken.jpg"),
    ],
)
def test_bad_arguments_are_named(arguments, message, tmp_path, capsys):
    if arguments == ["BROKEN"]:
        (tmp_path / "broken.jpg").write_text("x")
    arguments = [str(tmp_path) if a.isupper() else a for a in arguments]
    assert main(["bench", "data", *arguments]) == 2
    assert message in capsys.readouterr().err
