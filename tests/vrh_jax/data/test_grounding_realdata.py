"""The real annotation files: published counts, real rows, a real TFDS dataset."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from vrh_jax.data.benchmarks import toloka
from vrh_jax.data.benchmarks.refcoco import RefcocoOptions, load_refcoco
from vrh_jax.data.check import check, published
from vrh_jax.data.images import ImageFolder, image_key
from vrh_jax.data.recognise import recognise
from vrh_jax.data.source import keys, shard
from vrh_jax.strict import parse_settings

pytestmark = pytest.mark.realdata
# dataset, split: sentences, refs, images, repeats for one ref, sentences that name several refs
COUNTS = {
    ("refcoco", "val"): (10834, 3811, 1500, 566, 3),
    ("refcoco", "testA"): (5657, 1975, 750, 308, 1),
    ("refcoco", "testB"): (5095, 1810, 750, 301, 9),
    ("refcocoplus", "val"): (10758, 3805, 1500, 662, 4),
    ("refcocoplus", "testA"): (5726, 1975, 750, 453, 2),
    ("refcocoplus", "testB"): (4889, 1798, 750, 225, 7),
    ("refcocog", "val"): (4896, 2573, 1300, 7, 0),
    ("refcocog", "test"): (9602, 5023, 2600, 25, 0),
}


@pytest.fixture(scope="module")
def real():
    folder = os.environ.get("VRH_REALDATA")
    if not folder:
        pytest.skip("VRH_REALDATA is unset: the real annotation files are missing")
    return Path(folder)


def refcoco(real, dataset, split, **options):
    given = {"path": real / "refcoco_eval", "images": real / "images", "split": split, **options}
    return load_refcoco(dataset, parse_settings(RefcocoOptions, given, "options"))


@pytest.mark.parametrize(("dataset", "split"), COUNTS)
def test_published_counts(real, dataset, split):
    found = check(dataset, refcoco(real, dataset, split), split=split)
    texts, boxes = found["texts"], found["boxes"]
    assert COUNTS[dataset, split] == (
        found["sentences"],
        found["refs"],
        found["images"],
        texts["repeated_for_one_ref"],
        texts["names_several_refs"],
    )
    assert any("UNC" in line or "UMD" in line for line in found["matches"])
    assert boxes["out_of_bounds"] == boxes["degenerate"] == texts["empty"] == 0
    assert 0.16 < boxes["touch_right_or_bottom"] / found["sentences"] < 0.22
    assert len(refcoco(real, dataset, split, per="ref")) == found["refs"]
    if (dataset, split) == ("refcocoplus", "val"):
        assert found["distinct_boxes"] == 3804
        assert "the paper" in " ".join(found["matches"])


def test_every_published_count_of_refcoco_is_in_the_table():
    for (dataset, split), (sentences, refs, images, *_) in COUNTS.items():
        assert any(
            e.get("split") == split
            and (e.get("sentences"), e.get("refs"), e.get("images")) == (sentences, refs, images)
            for e in published()[dataset]
        )
    paper = [e.get("refs", e.get("distinct_boxes")) for d in ("refcoco", "refcocoplus", "refcocog")
             for e in published()[d] if "the paper" in e["whose"]]  # fmt: skip
    assert paper == [8811, 3804, 7573]


def test_benchmarks_share_images(real):
    images = {
        name: {k.image_id for k in keys(refcoco(real, *name))}
        for name in (("refcoco", "val"), ("refcocoplus", "val"), ("refcocog", "val"),
                     ("refcocog", "test"))
    }  # fmt: skip
    coco, plus, g_val, g_test = images.values()
    assert coco == plus
    assert (len(coco & g_val), len(coco & g_test)) == (62, 123)


def test_real_rows(real):
    lines = [json.loads(line) for line in (real / "samples.jsonl").open()]
    names = {"refcoco": "refcoco", "refcoco+": "refcocoplus", "refcocog": "refcocog"}
    checked = 0
    for dataset, split in COUNTS:
        wanted = [r for r in lines if (names.get(r["dataset"]), r["split"]) == (dataset, split)]
        if not wanted:
            continue
        samples = list(refcoco(real, dataset, split))
        for row in wanted:
            image = image_key(Path(row["image"]).name)
            fitting = [
                s
                for s in samples
                if s.text == row["expression"]
                and s.image_id == image
                and s.box == pytest.approx(row["box_xyxy"], abs=0.01)
            ]
            assert fitting, row["id"]
            assert fitting[0].image_size == (row["width"], row["height"])
            folder = ImageFolder((real / row["image"]).parent)
            assert folder.find(row["id"].split("/")[1])().size == fitting[0].image_size
            checked += 1
    assert checked >= 20


def test_sentences_are_not_corrected(real):
    texts = {s.text for s in refcoco(real, "refcocoplus", "testA")}
    assert "rightest guyin black" in texts
    assert "coffe" in {s.text for s in refcoco(real, "refcoco", "testB")}


def test_shards_cover_everything_once(real):
    source = refcoco(real, "refcocog", "val")
    shards = [shard(source, i, 7) for i in range(7)]
    assert sum(map(len, shards)) == len(source)
    ids = [k.id for part in shards for k in keys(part)]
    assert sorted(ids) == sorted(k.id for k in keys(source))
    assert pickle.loads(pickle.dumps(shards[3]))[5] == source[3 + 5 * 7]


def test_toloka(real):
    for split, count in (("test_public", 1705), ("train_sample", 1000)):
        options = toloka.TolokaOptions(path=real / "toloka", split=split)
        source = toloka.load(options, "detection", 1)
        found = check("toloka", source, split=split)
        assert found["samples"] == count
        assert found["boxes"]["out_of_bounds"] == found["boxes"]["degenerate"] == 0
        assert any(split in line for line in found["matches"])
        assert source[0].text == {
            "test_public": "Where can we cook meals",
            "train_sample": "Which is different from the group?",
        }[split]  # fmt: skip


def test_tfds_gives_the_rows_it_was_built_from(real):
    path = real / "tfds_ref_coco_tiny"
    for split, count in (("train", 4), ("val", 8), ("testA", 4), ("testB", 14)):
        options = RefcocoOptions(path=path, split=split)
        samples = list(load_refcoco("refcoco", options))
        assert len(samples) == count
        for s in samples:
            assert s.image().size == s.image_size
        if split not in ("val", "testB"):
            continue  # the tiny train and testA repeat objects of val
        rows = {(r.image_id, r.text): r for r in refcoco(real, "refcoco", split)}
        for s in samples:
            original = rows[s.image_id, s.text]
            assert s.box == pytest.approx(original.box, abs=1e-3)
            assert s.image_size == original.image_size
        again = pickle.loads(pickle.dumps(samples[0]))
        assert again.image().tobytes() == samples[0].image().tobytes()


def test_tfds_is_read_without_tensorflow(real):
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from vrh_jax.data.benchmarks.refcoco import RefcocoOptions, load_refcoco\n"
        f"s = load_refcoco('refcoco', RefcocoOptions(path=Path({str(real)!r}) / "
        "'tfds_ref_coco_tiny'))\n"
        "assert s[0].image().size == (640, 428)\n"
        "assert 'tensorflow' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_files_are_recognised(real):
    found = {(f.task, f.split) for f in recognise(real / "refcoco_eval")}
    assert found == set(COUNTS)
    assert {(f.task, f.split) for f in recognise(real / "toloka")} == {
        ("toloka", "test_public"), ("toloka", "train_sample"),
    }  # fmt: skip
    tiny = {(f.task, f.split) for f in recognise(real / "tfds_ref_coco_tiny")}
    assert tiny == {("refcoco", s) for s in ("train", "val", "testA", "testB")}
    everything = recognise(real)
    assert {f.task for f in everything} == {
        "refcoco", "refcocoplus", "refcocog", "toloka", "mathvista", "countbench",
    }  # fmt: skip
    assert len(everything) == 8 + 2 + 4 + 2
