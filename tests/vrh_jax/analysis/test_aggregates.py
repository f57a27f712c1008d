"""Official scores, recomputed by hand from rows; each differs from the plain mean."""

import numpy as np
import pyarrow as pa
import pytest

from vrh_jax.analysis.aggregates import aggregates
from vrh_jax.analysis.results import make_cells
from vrh_jax.answers import judge
from vrh_jax.data.sample import Sample


def cells(rule, answers, **changes):
    """Cells of one benchmark from (category, correct, reading, expected)."""
    n = len(answers)
    categories, correct, readings, expected = zip(*answers, strict=True)
    columns = {
        "model": ["m"] * n, "benchmark": ["b"] * n, "heads": ["none"] * n, "k": [0] * n,
        "draw": [0] * n, "sample_id": [f"s{i:04d}" for i in range(n)], "group": ["g"] * n,
        "task": ["choice"] * n, "failure": ["" if c else "wrong_answer" for c in correct],
        "category": categories, "rule": [rule] * n, "reading": readings, "expected": expected,
        "correct": correct, "iou": [None] * n, "n_tokens": [1] * n, **changes,
    }  # fmt: skip
    return make_cells(pa.table(columns))


def score(rule, answers, **changes):
    (entry,) = aggregates(cells(rule, answers, **changes))
    assert entry["n"] == len(answers)
    assert entry["mean"] == pytest.approx(np.mean([a[1] for a in answers]))
    return entry


def some(category, right, n):
    return [(category, i < right, "x", "x") for i in range(n)]


def test_cv_bench_weighs_sources_not_questions():
    answers = some("ADE20K/Count", 3, 8) + some("COCO/Relation", 2, 2) + some("Omni3D/Depth", 1, 4)
    entry = score("cv_bench", answers)
    assert entry["official"] == pytest.approx(((0.375 + 1) / 2 + 0.25) / 2)
    assert entry["official"] != pytest.approx(entry["mean"])
    assert entry["measures"] == {"2D": 0.6875, "3D": 0.25}
    assert {p["name"]: p["n"] for p in entry["parts"]} == {
        "ADE20K": 8, "COCO": 2, "Omni3D": 4, "Count": 8, "Relation": 2, "Depth": 4
    }  # fmt: skip
    assert score("cv_bench", some("Omni3D/Depth", 1, 4))["official"] is None


def test_mmstar_is_the_total_not_the_mean_of_subcategories():
    # The mean of the subcategories' means (lmms-eval) would be 0.75 here.
    answers = some("math/geometry", 500, 1000) + some("math/other", 500, 500)
    entry = score("mmstar", answers)
    assert entry["official"] == pytest.approx(1000 / 1500)
    official = [False] * 1499 + [True]
    assert score("mmstar", answers, official=official)["official"] == 1 / 1500
    assert {p["name"] for p in entry["parts"]} == {"math", "math/geometry", "math/other"}
    assert score("mmstar", answers[:100])["official"] is None  # of a part there is no total


def test_spatial457_leniencies_are_counted_one_by_one():
    answers = [
        ("L1_single", True, "red", "red"),
        ("L1_single", False, "double bus", "school bus"),
        ("L1_single", False, "suv", "truck"),
        ("L1_single", False, "none", "False"),
        ("L1_single", False, "0", "False"),
        ("L1_single", False, "3", "True"),
        ("L1_single", False, "chopper", "truck"),
        ("L1_single", False, "", "red"),
    ]
    official = [True] * 6 + [False] * 2
    entry = score("spatial457", answers, official=official)
    assert entry["mean"] == 1 / 8
    assert entry["official"] == 6 / 8
    assert entry["measures"] == {
        "none_is_no": 1, "zero_is_no": 1, "number_is_yes": 1, "super_category": 2
    }  # fmt: skip


def test_spatialrgpt_errors_are_over_answers_with_a_size_success_over_all():
    answers = [
        ("width_data", True, "1.1", "1"),
        ("width_data", False, "3", "2"),
        ("height_data", True, "4", "4"),
        ("height_data", False, "", "1"),
    ]
    entry = score("spatialrgpt", answers)
    assert entry["official"] == entry["mean"] == 0.5
    measures = entry["measures"]
    assert measures["unread"] == 1
    assert measures["abs_rel_error"] == pytest.approx((0.1 + 0.5 + 0) / 3)
    assert measures["abs_rel_error width_data"] == pytest.approx(0.3)
    assert measures["abs_rel_error height_data"] == 0
    nothing = score("spatialrgpt", [("width_data", False, "", "1")])
    assert nothing["measures"]["abs_rel_error"] is None


@pytest.mark.parametrize("rule", ["mathvista", "countbench", "vaw"])
def test_parts_cover_every_answer(rule):
    answers = [(f"a/{'bc'[i % 2]}", i % 3 == 0, "x", str(i % 4)) for i in range(30)]
    entry = score(rule, answers)
    assert sum(p["n"] for p in entry["parts"]) in (30, 60)
    assert entry["official"] == (None if rule == "vaw" else pytest.approx(entry["mean"]))


def test_general_questions_have_parts_but_no_official_score():
    assert aggregates(cells("", some("", 1, 2))) == []
    entry = score("", some("spatial", 1, 2) + some("counting", 3, 3))
    assert entry["official"] is None
    assert {p["name"]: p["mean"] for p in entry["parts"]} == {"counting": 1, "spatial": 0.5}


def test_categories_may_lack_levels():
    entry = score("mathvista", [("free_form/", True, "1", "1"), ("multi_choice", False, "a", "b")])
    assert [p["name"] for p in entry["parts"]] == ["free_form", "multi_choice"]


def test_older_rows_have_no_official_score():
    table = pa.table({
        "model": ["m"], "benchmark": ["b"], "heads": ["none"], "k": [0], "draw": [0],
        "sample_id": ["s"], "group": ["g"], "task": ["text"], "failure": [""], "correct": [True],
        "iou": [None], "n_tokens": [1],
    })  # fmt: skip
    assert aggregates(make_cells(table)) == []


def test_what_is_judged_is_what_is_aggregated():
    """Readings that ``judge`` writes are those that the scores read."""
    size = Sample("s", "number", "?", None, (0, 0), None, "0.5", "i", "i", unit="m",
                  category="width_data", rule="spatialrgpt")  # fmt: skip
    texts = ["50 cm", "about 20 inches", "no idea", "2 ft"]
    verdicts = [judge(size, text) for text in texts]
    answers = [("width_data", v.correct, v.reading, size.answer) for v in verdicts]
    measures = score("spatialrgpt", answers)["measures"]
    errors = [0, 0.508 / 0.5 - 1, 0.6096 / 0.5 - 1]
    assert measures["abs_rel_error"] == pytest.approx(np.mean(errors))
    assert [v.correct for v in verdicts] == [True, True, False, True]
    bus = Sample("s", "text", "?", None, (0, 0), None, "school bus", "i", "i", rule="spatial457",
                 category="L1_single")  # fmt: skip
    verdict = judge(bus, "{'Reasoning': 'long', 'Answer': 'Double bus'}")
    answers = [("L1_single", verdict.correct, verdict.reading, bus.answer)]
    entry = score("spatial457", answers, official=[verdict.official])
    assert (entry["mean"], entry["official"]) == (0, 1)
