"""Each statistic against scipy or brute force."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from vrh_jax.analysis.intervals import failure_split, wilson
from vrh_jax.analysis.paired import (
    effect_over_controls,
    holm,
    mcnemar,
    paired_difference,
    permutation_p,
    resampled_means,
)

# Chance that an interval at 95 % covers, over the repeats of a test: 3.5 sigma around 0.95.
REPEATS = 200
LEAST = 0.95 - 3.5 * np.sqrt(0.05 * 0.95 / REPEATS)


@given(st.integers(0, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_is_scipys(counts):
    successes, n = counts
    low, high = wilson(successes, n)
    if n == 0:
        assert (low, high) == (0, 1)
        return
    expected = stats.binomtest(successes, n).proportion_ci(0.95, method="wilson")
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert low <= successes / n <= high


@pytest.mark.parametrize(("correct", "n", "low", "high"), [(43, 100, 33.7, 52.8)])
def test_wilson_as_published(correct, n, low, high):
    assert [round(100 * v, 1) for v in wilson(correct, n)] == [low, high]


def test_wilson_refuses_nonsense():
    with pytest.raises(ValueError, match="5 successes of 4"):
        wilson(5, 4)


def test_failure_split_counts_all_kinds():
    split = failure_split(["", "mislocated", "mislocated", "parse_failure"])
    counts = {s["kind"]: s["count"] for s in split}
    assert counts == {
        "parse_failure": 1, "invalid_box": 0, "mislocated": 2, "wrong_answer": 0, "image_error": 0,
    }  # fmt: skip
    assert split[2]["share"] == 0.5
    assert (split[2]["low"], split[2]["high"]) == wilson(2, 4)
    with pytest.raises(ValueError, match="'odd'"):
        failure_split(["odd"])


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=14))
def test_mcnemar_is_the_sign_test(pairs):
    first, second = np.array(pairs).T
    b, c, p = mcnemar(first, second)
    assert b == sum(x and not y for x, y in pairs)
    assert c == sum(y and not x for x, y in pairs)
    # Every assignment of signs to the discordant pairs, at least as far from even.
    m, far = b + c, abs(b - c)
    signs = [abs(2 * sum(s) - m) >= far for s in itertools.product((0, 1), repeat=m)]
    assert p == pytest.approx(np.mean(signs))


def test_cluster_bootstrap_has_the_sandwich_variance():
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(80), rng.integers(1, 6, 80))
    values = rng.normal(size=80)[groups] + 0.3 * rng.normal(size=len(groups))
    means = resampled_means(values[:, None], groups, resamples=20_000, seed=0)[:, 0]
    # Linearised variance of a ratio mean with whole clusters resampled.
    residual = np.bincount(groups, values - values.mean())
    expected = np.sqrt((residual**2).sum()) / len(groups)
    assert means.std() == pytest.approx(expected, rel=0.03)
    independent = values.std() / np.sqrt(len(groups))
    assert means.std() > 1.3 * independent


def test_resamples_are_the_same_for_all_columns_and_calls():
    rng = np.random.default_rng(1)
    values = rng.normal(size=(30, 2))
    groups = rng.integers(0, 9, 30).astype(str)
    together = resampled_means(values, groups, resamples=50, seed=3)
    apart = resampled_means(values[:, 1:], groups, resamples=50, seed=3)
    np.testing.assert_allclose(together[:, 1:], apart)
    assert not np.allclose(together, resampled_means(values, groups, resamples=50, seed=4))


def test_paired_difference_covers():
    rng = np.random.default_rng(2)
    covered = 0
    for trial in range(REPEATS):
        hard = rng.random(60)  # difficulty shared by the expressions of an image
        groups = np.repeat(np.arange(60), 3)
        first = rng.random(180) < 0.9 * hard[groups]
        second = rng.random(180) < 0.5 * hard[groups]
        found = paired_difference(first, second, groups, resamples=500, seed=trial)
        assert found.value == pytest.approx(first.mean() - second.mean())
        covered += found.low <= 0.2 <= found.high
    assert covered / REPEATS >= LEAST


def test_two_level_bootstrap_covers_where_samples_alone_do_not():
    rng = np.random.default_rng(3)
    both = samples_only = 0
    for trial in range(REPEATS):
        share = np.clip(rng.normal(0.7, 0.15, 20), 0, 1)  # draws differ in what they break
        controls = rng.random((20, 150)) < share[:, None]
        chosen = rng.random(150) < 0.2
        groups = np.arange(150)
        found = effect_over_controls(chosen, controls, groups, resamples=500, seed=trial)
        truth = 0.7 - 0.2
        both += found.low <= truth <= found.high
        alone = paired_difference(controls.mean(axis=0), chosen, groups, resamples=500, seed=trial)
        assert alone.value == pytest.approx(found.value)
        samples_only += alone.low <= truth <= alone.high
    assert both / REPEATS >= LEAST - 0.02  # 20 draws make a percentile interval a little short
    assert both > samples_only


def test_one_draw_leaves_the_interval_of_the_samples():
    rng = np.random.default_rng(4)
    chosen, control = rng.random((2, 90)) < [[0.2], [0.8]]
    groups = np.arange(90)
    one = effect_over_controls(chosen, control[None], groups, resamples=400)
    assert one == paired_difference(control, chosen, groups, resamples=400)


def test_permutation_p_counts_ties():
    assert permutation_p(2.0, np.array([1.0, 2.0, 3.0])) == 3 / 4
    assert permutation_p(9.0, np.arange(19.0)[:9]) == 1 / 10
    assert permutation_p(0.3, np.array([0.1 + 0.2])) == 1.0


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_is_the_step_down_rule(p):
    adjusted = holm(p)
    for level in (0.001, 0.01, 0.05, 0.2, 0.7):
        rejected = set()
        for rank, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
            if p[i] * (len(p) - rank) > level:
                break
            rejected.add(i)
        # The rule and the adjusted values reject the same hypotheses.
        assert {i for i, q in enumerate(adjusted) if q <= level} == rejected
