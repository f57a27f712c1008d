"""A study on RefCOCO, RefCOCO+ and Toloka from files in their owners' formats."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from support.parity import textured_image
from support.qwen25 import write_checkpoint

from vrh_jax.cli import main
from vrh_jax.config import load_config
from vrh_jax.data.registry import task
from vrh_jax.data.split import study_samples
from vrh_jax.strict import parse_settings

SIZES = [(112, 84), (90, 140), (126, 98)]
CONFIG = Path(__file__).parents[3] / "configs" / "refcoco.yaml"


def write_data(folder: Path) -> None:
    """Nine images; the refs of both sets are on the same ones, and so are Toloka's questions."""
    (folder / "train2014").mkdir()
    (folder / "toloka").mkdir()
    rows, lines = [], ["image,width,height,left,top,right,bottom,question"]
    for i in range(9):
        width, height = SIZES[i % 3]
        name = f"COCO_train2014_{i + 1:012d}"
        if i != 7:  # its image is missing
            textured_image(width, height, seed=i).save(folder / "train2014" / f"{name}.jpg")
        rows += [
            {"img_id": f"{name}_{n}", "sents": f"thing {i} {said}", "bbox": [2 + i, 3, 50, 60],
             "width": width, "height": height}
            for n in range(2) for said in ("red", "left")
        ]  # fmt: skip
        lines.append(f"https://cdn/x/{i + 1:012d}.jpg,{width},{height},1,2,40,50,What is {i}?")
    for dataset in ("refcoco", "refcoco+"):
        (folder / f"{dataset}_val.json").write_text(json.dumps(rows))
    (folder / "toloka" / "test_public.csv").write_text("\n".join(lines) + "\n")
    broken = folder / "train2014" / "COCO_train2014_000000000004.jpg"
    broken.write_bytes(broken.read_bytes()[:900])


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    folder = tmp_path_factory.mktemp("refcoco")
    (folder / "qwen").mkdir()
    write_checkpoint(folder / "qwen", seed=1)
    write_data(folder)
    path, images = str(folder), str(folder / "train2014")
    config = {
        "name": "refs",
        "models": [{"name": "qwen", "source": str(folder / "qwen")}],
        "benchmarks": {
            "coco": {"task": "refcoco", "options": {"path": path, "images": images}},
            "plus": {
                "task": "refcocoplus", "options": {"path": path, "images": images, "per": "ref"},
            },
            "toloka": {"task": "toloka", "options": {"path": f"{path}/toloka", "images": images}},
        },
        "detection": {"benchmark": "coco", "samples": 6},
        "evaluation": [
            {"benchmark": "coco", "samples": 28},
            {"benchmark": "plus", "samples": 14},
            {"benchmark": "toloka", "samples": 7},
        ],
        "ks": [1],
        "controls": {"draws": 0},
        "max_new": {"grounding": 4},
        "batch": {"generate": 8, "score": 4, "bucket": 64},
    }  # fmt: skip
    # A seed for which the two bad images are in the evaluation.
    config["split_seed"] = next(s for s in range(50) if not {"coco-4", "coco-8"} & taken(config, s))
    file = folder / "study.yaml"
    file.write_text(yaml.safe_dump(config))
    return folder, file, main(["study", str(file), "--out", str(folder / "out")])


def taken(config, seed):
    from vrh_jax.config import StudyConfig

    checked = parse_settings(StudyConfig, {**config, "split_seed": seed}, "study")
    detection, _ = study_samples(checked)
    return {s.image_id for s in detection}


def rows(folder, benchmark):
    files = sorted((folder / "out" / "rows" / "qwen" / benchmark).glob("*.parquet"))
    assert len(files) == 2
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def test_bad_images_are_failed_rows_with_a_reason(ended):
    folder, _, status = ended
    assert status == 0
    for benchmark, per_image in (("coco", 4), ("plus", 2), ("toloka", 1)):
        found = rows(folder, benchmark)
        assert len(found) == 2 * 7 * per_image
        failed = [r for r in found if r["failure"] == "image_error"]
        assert len(failed) == 2 * 2 * per_image
        assert {r["image_id"] for r in failed} == {"coco-4", "coco-8"}
        for row in failed:
            reason = "no such image" if row["image_id"] == "coco-8" else "cannot be decoded"
            assert reason in row["error"]
            assert not row["correct"]
        assert all(not r["error"] for r in found if r not in failed)
    summary = json.loads((folder / "out" / "summary.json").read_text())
    for entry in summary["accuracy"]:
        assert entry["n"] == {"coco": 28, "plus": 14, "toloka": 7}[entry["benchmark"]]


def test_no_detection_image_is_evaluated_on_any_benchmark(ended):
    folder, file, _ = ended
    detection, evaluation = study_samples(load_config(file))
    used = {s.image_id for s in detection}
    assert len(used) == 2
    for benchmark, samples in evaluation.items():
        assert not used & {s.image_id for s in samples}
        assert {r["image_id"] for r in rows(folder, benchmark)} == {s.image_id for s in samples}
    again, _ = study_samples(load_config(file))
    assert [s.id for s in again] == [s.id for s in detection]


def test_the_plan_counts_samples_before_any_work(ended, capsys):
    _, file, _ = ended
    assert main(["plan", str(file), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["detection"] == {
        "benchmark": "coco", "samples": 6, "images": 2, "score": "region_sum",
    }  # fmt: skip
    assert [e["samples"] for e in plan["evaluation"]] == [28, 14, 7]


def test_the_example_config_is_valid():
    config = load_config(CONFIG)
    for name, settings in config.benchmarks.items():
        options = parse_settings(task(settings.task).options, settings.options, name)
        assert options.path == Path("data") / settings.task
