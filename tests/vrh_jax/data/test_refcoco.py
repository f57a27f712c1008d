"""RefCOCO in every published layout: the same samples come out of each."""

import json
import pickle

import pytest
from support import refcoco as files

from model_ports.errors import UserError
from vrh_jax.config import BenchmarkSettings
from vrh_jax.data.benchmarks.refcoco import RefcocoOptions, load_refcoco
from vrh_jax.data.check import check
from vrh_jax.data.registry import load
from vrh_jax.data.source import key_of, keys
from vrh_jax.strict import parse_settings

LAYOUTS = ("official", "protocol 0", "lmms", "minigpt4", "jsonl", "vlm-r1")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("coco")
    files.write_images(folder / "train2014")
    return folder


def write(layout, folder, images):
    if layout in ("official", "protocol 0"):
        protocol = 0 if layout == "protocol 0" else 2
        return files.write_official(folder / "refcoco", unc=protocol, google=protocol).parent
    if layout == "lmms":
        return files.write_parquet(folder / "data", images / "train2014").parent
    rows = files.sentence_rows(layout)
    if layout == "jsonl":
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / "refcoco_val.jsonl").write_text(text)
    else:
        (folder / "refcoco_val.json").write_text(json.dumps(rows))
    return folder


def read(path, images=None, **options):
    given = {"path": path, **({"images": images} if images else {}), **options}
    return load_refcoco("refcoco", parse_settings(RefcocoOptions, given, "options"))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_samples(layout, tmp_path, images):
    source = read(write(layout, tmp_path, images), images)
    samples = list(source)
    found = [(s.image_id, s.text, s.box) for s in samples]
    assert found == files.boxes()  # repeated sentences stay; nothing is corrected
    assert len({s.id for s in samples}) == len(samples) == len(source) == 5
    for s in samples:
        assert s.image_size == files.SIZES[int(s.image_id.removeprefix("coco-"))]
        assert s.image().size == s.image_size
        assert s.image().getpixel((0, 0))[0] == pytest.approx(int(s.image_id[5:]), abs=4)
        assert s.group == s.image_id
        assert "#" in s.source
    assert [key_of(s) for s in samples] == keys(source)
    assert list(pickle.loads(pickle.dumps(source))) == samples
    per_ref = list(read(write(layout, tmp_path, images), images, per="ref"))
    assert [s.text for s in per_ref] == ["left cup", "left cup", "purée"]
    counted = check("refcoco", source)
    assert (counted["sentences"], counted["refs"], counted["images"]) == (5, 3, 2)
    assert counted["texts"]["repeated_for_one_ref"] == 1
    assert counted["texts"]["names_several_refs"] == 1
    assert counted["boxes"]["touch_right_or_bottom"] == 3
    assert counted["boxes"]["out_of_bounds"] == counted["boxes"]["degenerate"] == 0
    assert counted["image_files"]["good"] == 2


def test_raw_sentences_other_splits_and_two_partitions(tmp_path, images):
    folder = write("official", tmp_path, images)
    raw = [s.text for s in read(folder, images, wording="raw")]
    assert raw == ["Left cup!", "w/carrots", "left cup", "purée", "purée"]
    assert [s.text for s in read(folder, images, split="testA")] == ["guyin black"]
    both = read(folder, images, partitions=["unc", "google"], per="ref")
    assert [s.row["ref_id"] for s in both] == ["unc-1", "unc-2", "unc-3", "google-1", "google-9"]
    assert [s.row["ref_id"] for s in read(folder / "refcoco" / "refs(google).p")] == [
        "google-1", "google-9",
    ]  # fmt: skip
    first = next(iter(both))
    assert first.row["sentences"][1]["raw"] == "w/carrots"
    assert first.source.endswith("refs(unc).p#0")
    with pytest.raises(UserError, match=r"split 'test'.*testA.*train.*val"):
        read(folder, images, split="test")


def test_names_of_other_years_are_found(tmp_path, images):
    folder = write("minigpt4", tmp_path, images)
    (tmp_path / "train2017").mkdir()
    for image in files.SIZES:
        data = (images / "train2014" / files.file_name(image)).read_bytes()
        (tmp_path / "train2017" / f"{image:012d}.jpg").write_bytes(data)
    assert [s.image().size for s in read(folder)] == [s.image_size for s in read(folder)]


def test_the_corners_that_are_one_too_far(tmp_path):
    rows = files.sentence_rows("vlm-r1", plus_one=True)
    (tmp_path / "refcoco_val.json").write_text(json.dumps(rows))
    found = check("refcoco", read(tmp_path))["boxes"]
    assert found["out_of_bounds"] == 3
    assert "plus_one" in found["hints"][0]
    assert [s.box for s in read(tmp_path, plus_one=True)] == [b for *_, b in files.boxes()]
    with pytest.raises(UserError, match="plus_one is for"):
        read(files.write_official(tmp_path / "official"), plus_one=True)


def test_xywh_read_as_corners_is_hinted_at(tmp_path):
    rows = [
        {"image": "a.jpg", "sent": "x", "bbox": [30, 30, 5, 6], "width": 64, "height": 48}
        for _ in range(3)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(r) for r in rows))
    found = check("refcoco", read(tmp_path / "rows.jsonl"))["boxes"]
    assert found["degenerate"] == 3
    assert "xywh" in found["hints"][0]


@pytest.mark.parametrize(
    ("name", "rows", "match"),
    [
        ("refcoco_val.json", [{"a": 1}], r"keys \['a'\].*fit no known layout"),
        ("refcoco_val.json", {"a": 1}, "expected a list of objects"),
        ("refcoco_val.json", [], "fit no known layout"),
        ("refcoco_val.json", [{"img_id": "i", "sents": "s", "bbox": [1, 2, 3]}], "four numbers"),
        ("refcoco_val.json", [{"img_id": "i", "sents": 3, "bbox": [1, 2, 3, 4]}], "sentence is 3"),
        (
            "refcoco_val.json",
            [{"img_id": "i", "sents": "s", "bbox": [1, 2, 3, 4]}, {"img_id": "i", "bbox": [1]}],
            "entry 1: key 'sents' is missing",
        ),
        ("other.json", [], "no annotations of refcoco"),
    ],
)
def test_bad_rows_are_named(tmp_path, name, rows, match):
    (tmp_path / name).write_text(json.dumps(rows))
    with pytest.raises(UserError, match=match):
        read(tmp_path)


def test_missing_files_are_named(tmp_path, images):
    with pytest.raises(UserError, match="vrh data get refcoco"):
        read(tmp_path / "absent")
    folder = files.write_official(tmp_path / "refcoco")
    (folder / "refs(google).p").unlink()
    with pytest.raises(UserError, match=r"refs\(google\).p is missing"):
        read(tmp_path, partitions=["unc", "google"])
    (folder / "instances.json").write_text('{"images": [], "annotations": []}')
    with pytest.raises(UserError, match="both files of one dataset"):
        read(tmp_path)
    (folder / "instances.json").unlink()
    with pytest.raises(UserError, match=r"instances.json: no such file"):
        read(tmp_path)
    parquet = files.write_parquet(tmp_path / "p" / "data", images / "train2014")
    (parquet / "val-00001-of-00002.parquet").unlink()
    with pytest.raises(UserError, match="1 of the 2 shards"):
        read(tmp_path / "p")


def test_images_of_lmms_rows_are_not_read_for_keys(tmp_path, images, monkeypatch):
    source = read(write("lmms", tmp_path, images))
    monkeypatch.setattr("vrh_jax.data.images._row_group", None)
    assert len(keys(source)) == 5


def test_the_three_tasks_are_registered(tmp_path, images):
    for name in ("refcoco", "refcocoplus", "refcocog"):
        rows = files.sentence_rows("minigpt4")
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(rows))
        settings = BenchmarkSettings(task=name, options={"path": file, "images": images})
        source, generated = load(name, settings, "evaluation", 1)
        assert (len(source), generated) == (5, False)
