"""Image references, lazy sources, and images that are broken, rotated or of any mode."""

import io
import json
import pickle

import grain
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from model_ports.errors import UserError
from vrh_jax.config import StudyConfig
from vrh_jax.data import images
from vrh_jax.data.images import (
    BytesImage,
    FileImage,
    ImageFolder,
    ParquetImage,
    content_key,
    image_key,
    readable,
    stored_size,
)
from vrh_jax.data.jsonl import JsonlOptions, load
from vrh_jax.data.prompts import TaskPrompt
from vrh_jax.data.source import View, keys, shard, take
from vrh_jax.data.split import study_samples
from vrh_jax.engine.batching import Task, prefetch, prepare
from vrh_jax.strict import parse_settings

BOX = [3, 2, 30, 20]


def write_rows(folder, names, **extra):
    path = folder / "own.jsonl"
    rows = [{"image": name, "text": f"thing {i}", "box": BOX, **extra}
            for i, name in enumerate(names)]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path, **options):
    return load(parse_settings(JsonlOptions, {"path": path, **options}, "o"), "detection", 1)


class Processor:
    """Keeps the image; refuses very wide ones, as Qwen's does."""

    def prepare(self, text, images, *, image_first):
        if images[0].width > 200 * images[0].height:
            raise UserError("aspect ratio above 200")
        return images[0]


def ready(sample):
    return prepare(Processor(), Task(sample, TaskPrompt("{text}", True, 4)))


def coloured(mode):
    """A 40x30 image of the mode whose left half differs from its right one."""
    values = np.full((30, 40), 200, np.uint8)
    values[:, :20] = 40
    grey = Image.fromarray(values)
    if mode == "I;16":
        return Image.fromarray(values.astype(np.uint16) << 8)
    if mode == "P+transparency":
        image = grey.convert("P")
        image.info["transparency"] = image.getpixel((0, 0))
        return image
    if mode in ("LA", "RGBA"):
        image = grey.convert(mode)
        image.putalpha(Image.fromarray(np.where(values == 40, 0, 255).astype(np.uint8)))
        return image
    return grey.convert(mode)


# Transparent pixels become white, and one bit has two values.
LEFT = {"LA": 255, "RGBA": 255, "P+transparency": 255, "1": None}


@pytest.mark.parametrize(
    ("mode", "ending"),
    [("L", "jpg"), ("RGB", "jpg"), ("CMYK", "jpg"), ("L", "png"), ("LA", "png"), ("P", "png"),
     ("P+transparency", "png"), ("RGBA", "png"), ("1", "png"), ("I;16", "png"), ("CMYK", "tif")],
)  # fmt: skip
def test_every_mode_is_the_same_rgb_everywhere(tmp_path, mode, ending):
    coloured(mode).save(tmp_path / f"i.{ending}")
    (sample,) = read(write_rows(tmp_path, [f"i.{ending}"]))
    assert sample.image_size == (40, 30)
    seen = [sample.image(), ready(sample).prompt, pickle.loads(pickle.dumps(sample)).image()]
    assert {i.mode for i in seen} == {"RGB"}
    assert len({i.tobytes() for i in seen}) == 1
    left, right = (np.asarray(seen[0])[15, x].astype(int) for x in (8, 32))
    assert left.max() - left.min() <= 2
    if LEFT.get(mode, 40) is not None:
        assert abs(left - LEFT.get(mode, 40)).max() <= 3
        assert abs(right - 200).max() <= 3


def test_exif_orientation_is_ignored(tmp_path):
    values = np.zeros((48, 64, 3), np.uint8)
    values[2:20, 3:30] = 255  # the box, in stored pixels
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(values).save(tmp_path / "turned.jpg", exif=exif, quality=95)
    (sample,) = read(write_rows(tmp_path, ["turned.jpg"]))
    assert sample.image_size == (64, 48)
    seen = np.asarray(sample.image())
    assert seen.shape == (48, 64, 3)
    x0, y0, x1, y1 = (int(v) for v in sample.box)
    assert seen[y0 + 1 : y1 - 1, x0 + 1 : x1 - 1].mean() > 250
    assert seen[25:, :].mean() < 5


def broken(folder):
    Image.new("RGB", (40, 30), (9, 9, 9)).save(folder / "good.png")
    noise = np.random.default_rng(0).integers(0, 255, (30, 40, 3), np.uint8)
    data = io.BytesIO()
    Image.fromarray(noise).save(data, "JPEG", quality=95)
    (folder / "truncated.jpg").write_bytes(data.getvalue()[: len(data.getvalue()) // 2])
    (folder / "text.jpg").write_text("<html>404</html>")
    (folder / "empty.jpg").write_bytes(b"")
    (folder / "folder.jpg").mkdir()
    Image.new("RGB", (4001, 20)).save(folder / "wide.png")
    return ["good.png", "truncated.jpg", "text.jpg", "empty.jpg", "folder.jpg", "absent.jpg",
            "wide.png"]  # fmt: skip


def test_a_bad_image_is_one_failed_sample_with_its_reason(tmp_path):
    names = broken(tmp_path)
    samples = list(read(write_rows(tmp_path, names)))
    assert len(samples) == len(names)
    results = list(prefetch(samples, ready, 2))
    assert results[0].error == ""
    for name, result in list(zip(names, results, strict=True))[1:]:
        assert result.prompt is None
        assert result.error
        assert name in result.error or name == "wide.png"
    assert "aspect ratio" in results[-1].error
    assert [readable(s.image) == "" for s in samples] == [
        True, True, False, False, False, False, True,
    ]  # fmt: skip


def test_reasons_are_the_same_in_every_run():
    image = BytesImage(b"no image", "row 3")
    with pytest.raises(UserError, match="row 3: not a readable image") as error:
        image()
    assert "0x" not in f"{error.value} {readable(image)}"


def test_an_image_of_another_size_is_a_failed_sample(tmp_path):
    Image.new("RGB", (40, 30)).save(tmp_path / "a.png")
    (sample,) = read(write_rows(tmp_path, ["a.png"]))
    Image.new("RGB", (30, 40)).save(tmp_path / "a.png")
    assert ready(sample).error == "image is (30, 40), expected (40, 30)"


def test_errors_of_the_prompt_alone_are_raised(tmp_path):
    class Refuses:
        def prepare(self, text, images, *, image_first):
            raise UserError("no template")

    (sample,) = read(write_rows(tmp_path, [None], kind="text", answer="x"))
    with pytest.raises(UserError, match="no template"):
        prepare(Refuses(), Task(sample, TaskPrompt("{text}", True, 4)))


def study(path):
    raw = {
        "name": "s",
        "models": [{"name": "m", "source": "x"}],
        "benchmarks": {"b": {"task": "jsonl", "options": {"path": str(path)}}},
        "detection": {"benchmark": "b", "samples": 1},
        "evaluation": [{"benchmark": "b", "samples": 2}],
    }
    return parse_settings(StudyConfig, raw, "study.yaml")


def test_a_wrong_folder_is_refused_before_any_work(tmp_path):
    path = write_rows(tmp_path, ["a.png", "b.png", "c.png"])
    with pytest.raises(UserError, match=r"none of its 1 images can be opened.*[abc]\.png"):
        study_samples(study(path))
    for name in "ab":
        Image.new("RGB", (40, 30)).save(tmp_path / f"{name}.png")
    found = []
    for seed in range(6):
        config = study(path).model_copy(update={"split_seed": seed})
        try:
            detection, evaluation = study_samples(config)
        except UserError:  # c alone is no detection set
            continue
        found.append({s.image_id for s in [*detection, *evaluation["b"]]})
    assert found
    assert all(ids == {"a.png", "b.png", "c.png"} for ids in found)


def test_boxes_of_own_samples_as_width_and_height(tmp_path):
    Image.new("RGB", (40, 30)).save(tmp_path / "a.png")
    path = write_rows(tmp_path, ["a.png"])
    assert read(path)[0].box == (3, 2, 30, 20)
    assert read(path, box="xywh")[0].box == (3, 2, 33, 22)
    with pytest.raises(UserError, match="xyxy"):
        read(path, box="yxyx")


def test_own_numbers_categories_and_image_folder(tmp_path):
    (tmp_path / "pics").mkdir()
    Image.new("RGB", (40, 30)).save(tmp_path / "pics" / "a.png")
    path = write_rows(tmp_path, ["a.png"], kind="number", answer=0, unit="m", category="width/x")
    (sample,) = read(path, images=tmp_path / "pics")
    assert (sample.answer, sample.unit, sample.category) == ("0", "m", "width/x")
    assert sample.image().size == (40, 30)
    assert sample.row["unit"] == "m"
    assert sample.source == f"{path}#0"


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("COCO_train2014_000000581857_16.jpg", "coco-581857"),
        ("https://cdn/wsdmcup2023/000000581857.jpg?sig=1", "coco-581857"),
        ("data/coco/train2014/COCO_train2014_000000581857.jpg", "coco-581857"),
        ("COCO_val2014_000000000042", "coco-42"),
        ("vg/2415.jpg", "vg/2415.jpg"),
        ("0000005818570.jpg", "0000005818570.jpg"),
    ],
)
def test_one_id_per_picture(name, key):
    assert image_key(name) == key


def test_images_are_found_by_annotated_names(tmp_path):
    (tmp_path / "train2014").mkdir()
    (tmp_path / "sub").mkdir()
    for file in ("train2014/COCO_train2014_000000000007.jpg", "000000000008.jpg", "sub/x.png"):
        Image.new("RGB", (4, 3)).save(tmp_path / file)
    find = ImageFolder(tmp_path).find
    for name in ("COCO_train2014_000000000007_3.jpg", "COCO_train2014_000000000007_3",
                 "http://images/train2017/000000000007.jpg", "a/b/COCO_train2014_000000000008.jpg",
                 "sub/x.png"):  # fmt: skip
        assert find(name)().size == (4, 3), name
    missing = find("COCO_train2014_000000000009_1.jpg")
    assert missing.path.name == "COCO_train2014_000000000009.jpg"
    with pytest.raises(UserError, match=r"000000000009\.jpg: no such image file"):
        missing()
    assert stored_size(missing) == (0, 0)


def test_images_in_parquet(tmp_path):
    data = io.BytesIO()
    Image.new("RGB", (5, 4), (1, 2, 3)).save(data, "PNG")
    Image.new("RGB", (6, 4)).save(tmp_path / "beside.png")
    cells = [{"bytes": data.getvalue(), "path": None}, {"bytes": None, "path": "beside.png"},
             {"bytes": None, "path": None}, {"bytes": b"broken", "path": None}]  # fmt: skip
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"image": cells, "plain": [data.getvalue()] * 4}), path)
    good, beside, none, bad = (ParquetImage(path, "image", 0, i) for i in range(4))
    assert good().getpixel((0, 0)) == ParquetImage(path, "plain", 0, 2)().getpixel((0, 0))
    assert (stored_size(good), stored_size(beside), stored_size(none)) == ((5, 4), (6, 4), (0, 0))
    assert content_key(good) == content_key(BytesImage(data.getvalue())) != content_key(beside)
    assert content_key(FileImage(tmp_path / "absent.png")) == ""
    for image in (none, bad):
        with pytest.raises(UserError, match=r"image, row [23] of row group 0"):
            image()


def test_cells_that_were_read_are_kept_up_to_a_limit(tmp_path, monkeypatch):
    kept = images._Kept(250)
    monkeypatch.setattr(images, "_KEPT", kept)
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"image": [bytes([i]) * 100 for i in range(4)]}), path)
    cells = [ParquetImage(path, "image", 0, i) for i in range(4)]
    assert [c.read()[:1] for c in cells] == [b"\0", b"\1", b"\2", b"\3"]
    assert (list(kept.cells), kept.used) == (cells[2:], 200)
    images._row_group.cache_clear()
    path.unlink()
    assert cells[3].read() == bytes([3]) * 100
    with pytest.raises(OSError, match=r"x\.parquet"):
        cells[0].read()


@pytest.fixture
def source(tmp_path):
    for i in range(9):
        Image.new("RGB", (40, 30), (i, 0, 0)).save(tmp_path / f"{i}.png")
    return read(write_rows(tmp_path, [f"{i}.png" for i in range(9)]))


def test_sources_are_what_grain_reads(source):
    assert isinstance(source, grain.sources.RandomAccessDataSource)
    data = grain.MapDataset.source(source).shuffle(seed=3).map(lambda s: s.image().getpixel((0, 0)))
    assert sorted(data[i][0] for i in range(len(source))) == list(range(9))
    assert [data[i] for i in range(9)] == [data[i] for i in range(9)]


def test_a_loader_of_grain_can_be_stopped_and_continued(source):
    def loader():
        sampler = grain.samplers.IndexSampler(len(source), shuffle=True, seed=1, num_epochs=1)
        return iter(grain.DataLoader(data_source=source, sampler=sampler))

    whole = [s.id for s in loader()]
    assert sorted(whole) == sorted(s.id for s in source)
    first = loader()
    begun = [next(first).id for _ in range(4)]
    second = loader()
    second.set_state(first.get_state())
    assert begun + [s.id for s in second] == whole
    assert repr(source) == "Rows(9 of _Loader)"
    assert repr(shard(source, 0, 2)) == "View(5 of Rows(9 of _Loader))"


def test_shards_views_and_keys(source):
    parts = [shard(source, i, 4) for i in range(4)]
    assert [len(p) for p in parts] == [3, 2, 2, 2]
    assert sorted(s.id for part in parts for s in part) == sorted(s.id for s in source)
    view = View(parts[0], [2, 0])
    assert [k.id for k in keys(view)] == [s.id for s in view] == ["line-9", "line-1"]
    assert [s.id for s in take(source, [5, 2, 5])] == ["line-6", "line-3", "line-6"]
    assert source[-1].id == "line-9"
    with pytest.raises(IndexError):
        source[9]
    with pytest.raises(ValueError, match="shard 4 of 4"):
        shard(source, 4, 4)


def test_selecting_samples_reads_no_image(source, monkeypatch):
    monkeypatch.setattr(Image, "open", None)
    assert len(keys(source)) == 9
    assert keys(source)[3].image_id == "3.png"
