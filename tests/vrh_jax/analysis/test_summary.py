"""summary.json holds what the rows say, and nothing that they do not say."""

import numpy as np
import pyarrow as pa
import pytest
from support.synthetic_study import KS, read_scores, read_table, write_study

from vrh_jax.analysis import summarise
from vrh_jax.analysis.intervals import wilson
from vrh_jax.analysis.results import make_cells
from vrh_jax.study.layout import Layout
from vrh_jax.study.rows import read_rows


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    out = tmp_path_factory.mktemp("study")
    summary, _ = write_study(out, n=60, draws=4, readable=0.9)
    return Layout(out), summary


def test_every_accuracy_is_recounted_from_its_file(study):
    layout, summary = study
    files = sorted((layout.out / "rows").rglob("*.parquet"))
    assert len(files) == len(summary["accuracy"]) > 100
    names = {"parse_failure": "parse_failures", "mislocated": "mislocated",
             "wrong_answer": "wrong_answers", "invalid_box": "invalid_boxes",
             "image_error": "image_errors"}  # fmt: skip
    for file in files:
        rows = read_rows(file)
        key = {name: rows[0][name] for name in ("model", "benchmark", "heads", "k", "draw")}
        (entry,) = [e for e in summary["accuracy"] if all(e[n] == v for n, v in key.items())]
        assert entry["n"] == len(rows)
        assert entry["correct"] == sum(r["correct"] for r in rows)
        assert entry["accuracy"] == entry["correct"] / entry["n"]
        assert (entry["ci_low"], entry["ci_high"]) == wilson(entry["correct"], entry["n"])
        for failure, name in names.items():
            assert entry[name] == sum(r["failure"] == failure for r in rows)
        assert entry["correct"] + sum(entry[n] for n in names.values()) == entry["n"]
        if rows[0]["task"] == "grounding":
            assert entry["mean_iou"] == pytest.approx(np.mean([r["iou"] for r in rows]))
        else:
            assert entry["mean_iou"] is None
        (split,) = [
            f["split"] for f in summary["failures"] if all(f[n] == v for n, v in key.items())
        ]
        assert {s["kind"]: s["count"] for s in split} == {f: entry[n] for f, n in names.items()}


def test_effects_follow_from_the_accuracies(study):
    _, summary = study
    value = {
        tuple(e[n] for n in ("model", "benchmark", "heads", "k", "draw")): e["accuracy"]
        for e in summary["accuracy"]
    }
    own = [e for e in summary["effects"] if e["heads"] == "vrh"]
    assert len(own) == 3 * 2 * len(KS)
    for effect in summary["effects"]:
        cell = (effect["model"], effect["benchmark"])
        before = value[(*cell, "none", 0, 0)]
        after = value[(*cell, effect["heads"], effect["k"], 0)]
        assert effect["drop"] == pytest.approx(before - after)
        assert effect["drop_low"] <= effect["drop"] <= effect["drop_high"]
        changes = effect["mcnemar"]
        assert changes["lost"] - changes["gained"] == round(effect["drop"] * effect["n"])
        for kind, control in effect["controls"].items():
            draws = [value[(*cell, kind, effect["k"], d)] for d in range(4)]
            assert control["mean"] == pytest.approx(np.mean(draws))
            assert (control["min"], control["max"]) == (min(draws), max(draws))
            assert control["effect"] == pytest.approx(np.mean(draws) - after)
            harmed = sum(d <= after + 1e-12 for d in draws)
            assert control["p"] == pytest.approx((1 + harmed) / 5)
            assert control["p_holm"] >= control["p"]


def test_order_of_rows_does_not_matter(study):
    layout, summary = study
    table = read_table(layout)
    mixed = table.take(np.random.default_rng(0).permutation(table.num_rows))
    scores = read_scores(layout, ("one", "two", "other"), "scenes")
    again = summarise(mixed, scores, summary["settings"], resamples=400)
    for part in ("accuracy", "tasks", "failures", "effects", "heads", "transfer"):
        assert again[part] == summary[part]


def test_tasks_split_mixed_benchmarks_only(study):
    _, summary = study
    assert {e["benchmark"] for e in summary["tasks"]} == {"questions"}
    assert {e["task"] for e in summary["tasks"]} == {"text", "count", "choice"}
    for whole in summary["accuracy"]:
        names = ("model", "benchmark", "heads", "k", "draw")
        parts = [e for e in summary["tasks"] if all(e[n] == whole[n] for n in names)]
        if whole["benchmark"] == "questions":
            assert sum(e["correct"] for e in parts) == whole["correct"]


def test_heads_are_ranked_as_the_study_ranks_them(study):
    from vrh_jax.heads.ranking import mean_scores, rank

    layout, summary = study
    scores = read_scores(layout, ("one", "two", "other"), "scenes")
    for heads in summary["heads"]:
        data = scores[heads["model"]]
        means = mean_scores(data["region_sum"].values, data["counted"].values)
        expected = rank(means)[: len(heads["top"])]
        assert [(h["layer"], h["head"]) for h in heads["top"]] == expected
        assert heads["counted"] == 76
        for head in heads["top"]:
            assert head["score"] == pytest.approx(means[head["layer"], head["head"]])
            assert head["score_low"] <= head["score"] <= head["score_high"]


def test_transfer_in_both_directions_and_against_layers(study):
    _, summary = study
    entries = {(e["source"], e["target"], e["top_k"]): e for e in summary["transfer"]}
    assert len(entries) == 3 * 2 * len(KS)
    tops = {h["model"]: [(t["layer"], t["head"]) for t in h["top"]] for h in summary["heads"]}
    for (source, target, k), entry in entries.items():
        assert entry["overlap"] == len(set(tops[source][:k]) & set(tops[target][:k]))
        assert entry["overlap"] == entries[target, source, k]["overlap"]
        assert entry["spearman_low"] <= entry["spearman"] <= entry["spearman_high"]
    shared, apart = entries["one", "two", 8], entries["one", "other", 8]
    assert (shared["backbone"], apart["backbone"]) == ("shared", "separate")
    assert shared["spearman"] > apart["spearman"]
    assert shared["p_null"] < 0.05
    curve = next(c for c in summary["overlap_curves"] if c["target"] == "two")
    assert [curve["overlap"][k - 1] for k in KS] == [
        entries["one", "two", k]["overlap"] for k in KS
    ]
    assert curve["expected_layer"][7] == pytest.approx(shared["expected_layer"])


def test_models_of_different_shape_share_no_heads(study):
    layout, summary = study
    scores = read_scores(layout, ("one", "two", "other"), "scenes")
    scores["two"] = scores["two"].isel(head=slice(0, 4))
    again = summarise(read_table(layout), scores, summary["settings"], resamples=50)
    assert {frozenset((e["source"], e["target"])) for e in again["transfer"]} == {
        frozenset(("one", "other"))
    }


def test_broken_rows_are_refused(study):
    layout, _ = study
    table = read_table(layout)
    with pytest.raises(ValueError, match="twice"):
        make_cells(pa.concat_tables([table, table.slice(0, 1)]))
    with pytest.raises(ValueError, match="different samples"):
        make_cells(table.slice(1))
    baseline = pa.compute.not_equal(table["heads"], "none")
    with pytest.raises(ValueError, match="no rows without a mask"):
        summarise(table.filter(baseline), {}, {})
    assert make_cells(table.slice(0, 0)) == {}


def test_no_effect_is_not_called_one(tmp_path):
    summary, _ = write_study(tmp_path, models=("solo",), text=True, effect=0.0, n=80, draws=6)
    largest = [e for e in summary["effects"] if e["k"] == max(KS)]
    assert largest
    for effect in largest:
        for control in effect["controls"].values():
            assert control["effect_low"] <= 0 <= control["effect_high"] or control["effect_low"] < 0
    assert summary["transfer"] == []
