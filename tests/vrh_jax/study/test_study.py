"""The whole study on hand-made copying models, whose one retrieval head is known."""

import copy
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import xarray as xr
from support.copy_model import COPY, HEADS, LAYERS, CopySource, write_samples

from model_ports.errors import UserError
from vrh_jax.config import StudyConfig
from vrh_jax.engine import generate
from vrh_jax.strict import parse_settings
from vrh_jax.study.layout import Layout
from vrh_jax.study.run import run_study

OTHER = (1, 3)


def settings(folder: Path, **changes):
    raw = {
        "name": "copying",
        "out": str(folder / "out"),
        "models": [
            {"name": "a", "source": "copy"},
            {"name": "b", "source": "copy:{}:{}".format(*OTHER)},
        ],
        "benchmarks": {"n": {"task": "jsonl", "options": {"path": str(folder / "n.jsonl")}}},
        "detection": {"benchmark": "n", "samples": 10},
        "evaluation": [{"benchmark": "n", "samples": 11}],
        "ks": [1, 3],
        "controls": {"draws": 2},
        "transfer": {"pairs": [{"models": ["a", "b"]}], "permutations": 50},
        "max_new": {"needle": 4},
        "batch": {"generate": 4, "score": 4, "bucket": 32},
    }
    return parse_settings(StudyConfig, {**raw, **copy.deepcopy(changes)}, "test")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    write_samples(folder / "n.jsonl", 40)
    compiled = generate._generate._cache_size()
    outcome = run_study(settings(folder), source=CopySource())
    return folder, outcome, generate._generate._cache_size() - compiled


def accuracy(outcome, **wanted):
    entries = outcome.summary["accuracy"]
    return [e["accuracy"] for e in entries if all(e[k] == v for k, v in wanted.items())]


def test_the_known_head_is_found_and_needed(finished):
    _, outcome, _ = finished
    for model, head in (("a", COPY), ("b", OTHER)):
        ranking = next(h for h in outcome.summary["heads"] if h["model"] == model)
        first = ranking["top"][0]
        assert (first["layer"], first["head"]) == head
        assert first["score"] == pytest.approx(1, abs=1e-3)
        assert accuracy(outcome, model=model, heads="none") == [1.0]
        assert accuracy(outcome, model=model, heads="vrh", k=1) == [0.0]
        for kind in ("random", "random_layer"):
            assert accuracy(outcome, model=model, heads=kind) == [1.0] * 4


def test_other_models_heads_are_masked(finished):
    _, outcome, _ = finished
    assert accuracy(outcome, model="a", heads="transfer:b", k=1) == [1.0]
    assert accuracy(outcome, model="b", heads="transfer:a", k=1) == [1.0]
    entry = next(t for t in outcome.summary["transfer"] if t["top_k"] == 1)
    assert entry["overlap"] == 0
    assert {t["source"] for t in outcome.summary["transfer"]} == {"a", "b"}


def test_one_compilation_serves_all_masks_and_models(finished):
    # Both models, detection and evaluation, 14 head sets: one shape, one program.
    assert finished[2] == 1


def test_files(finished):
    folder, outcome, _ = finished
    layout = Layout(folder / "out")
    with xr.open_dataset(layout.scores("a", "n"), engine="h5netcdf") as data:
        assert data["region_sum"].dims == ("sample", "layer", "head")
        assert data["region_sum"].shape == (10, LAYERS, HEADS)
        assert data["n_rows"].values.tolist() == [2] * 10
        assert data["correct"].values.all()
        detected = set(data["sample"].values.tolist())
    rows = pq.read_table(layout.rows("a", "n", "random-k0003-d001")).to_pylist()
    assert len(rows) == 11
    assert {r["settings"] for r in rows} == {outcome.summary["settings"]["hash"]}
    assert {(r["heads"], r["k"], r["draw"], r["task"]) for r in rows} == {
        ("random", 3, 1, "needle")
    }
    assert not detected & {r["sample_id"] for r in rows}
    # Two samples share an image; none of a detection image is evaluated.
    images = {f"i{int(s[1:]) // 2:03d}" for s in detected}
    assert not images & {r["image_id"] for r in rows}
    assert len(list((layout.out / "rows" / "a" / "n").glob("*.parquet"))) == 13
    assert not (layout.out / "parts").exists()
    assert layout.report.stat().st_size > 10_000
    for key in ("accuracy", "transfer", "versions", "settings", "wall_s"):
        assert outcome.summary[key]


def test_a_finished_study_does_nothing(finished):
    folder, _, _ = finished
    before = {p: p.stat().st_mtime_ns for p in (folder / "out").rglob("*") if p.is_file()}

    class Untouched:
        """Fails if the study reaches for a model."""

    outcome = run_study(settings(folder), source=Untouched())
    assert not outcome.worked
    assert outcome.summary["accuracy"]
    after = {p: p.stat().st_mtime_ns for p in (folder / "out").rglob("*") if p.is_file()}
    changed = {p.name for p in after if before.get(p) != after[p]}
    assert changed <= {".lock"}


def test_another_study_is_refused_and_kept(finished):
    folder, _, _ = finished
    with pytest.raises(UserError, match=r"controls.draws: 2 -> 3") as error:
        run_study(settings(folder, controls={"draws": 3}), source=CopySource())
    assert "--out" in str(error.value)
    assert Layout(folder / "out").finished


def test_batch_sizes_may_change(finished):
    folder, _, _ = finished
    assert not run_study(settings(folder, batch={"generate": 2}), source=CopySource()).worked


def test_a_folder_with_other_files_is_refused(tmp_path):
    write_samples(tmp_path / "n.jsonl", 40)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("x")
    with pytest.raises(UserError, match=r"no study.json"):
        run_study(settings(tmp_path), source=CopySource())


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"ks": [17]}, "17 heads cannot be masked in model 'a', which has 2 layers x 8 heads"),
        ({"evaluation": []}, "evaluation is empty"),
        ({"ks": [9]}, "only 7 other heads"),
        ({"scoring": {"method": "region_summ"}}, "did you mean 'region_sum'"),
        ({"detection": {"benchmark": "n", "samples": 41}}, "40 samples for detection"),
        ({"evaluation": [{"benchmark": "n", "samples": 31}]}, "30 samples for evaluation"),
    ],
)
def test_checks_come_before_any_work(tmp_path, changes, expected):
    write_samples(tmp_path / "n.jsonl", 40)

    class NoWeights(CopySource):
        def load(self, settings, mesh):
            raise AssertionError("weights were loaded before the checks")

    with pytest.raises(UserError, match=expected):
        run_study(settings(tmp_path, **changes), source=NoWeights())
    assert not (tmp_path / "out" / "study.json").exists()


def test_gate_on_correct_answers(tmp_path):
    write_samples(tmp_path / "n.jsonl", 40)
    lines = [json.loads(line) for line in (tmp_path / "n.jsonl").read_text().splitlines()]
    for line in lines[::2]:
        line["answer"] = "never said"
    (tmp_path / "n.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = settings(
        tmp_path, models=[{"name": "a", "source": "copy"}], transfer={},
        scoring={"gate": "correct"},
    )  # fmt: skip
    run_study(config, until="score", source=CopySource())
    heads = json.loads(Layout(tmp_path / "out").heads("a", "n").read_text())
    with xr.open_dataset(Layout(tmp_path / "out").scores("a", "n"), engine="h5netcdf") as data:
        np.testing.assert_array_equal(data["counted"].values, data["correct"].values)
        assert heads["counted"] == int(data["correct"].values.sum())
    assert 0 < heads["counted"] < 10


def test_a_tokenizer_with_more_words_than_embeddings_is_refused(tmp_path):
    write_samples(tmp_path / "n.jsonl", 40)

    class Mismatched(CopySource):
        def load(self, settings, mesh):
            model = super().load(settings, mesh)
            model.processor.tokenizer.add_tokens(["another"])
            return model

    with pytest.raises(UserError, match="24 tokens, but the model has 23"):
        run_study(settings(tmp_path), source=Mismatched())
