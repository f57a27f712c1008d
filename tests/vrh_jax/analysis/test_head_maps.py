"""Rankings, their stability, sparsity and transfer, against scipy or brute force."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from vrh_jax.analysis import ranking, sparsity, transfer


def scores(seed, n=60, layers=4, heads=6, noise=1.0):
    rng = np.random.default_rng(seed)
    return rng.gamma(0.5, size=(layers, heads)) + noise * rng.normal(size=(n, layers, heads))


@given(st.integers(0, 10_000), st.integers(2, 30))
def test_spearman_is_scipys_with_ties(seed, size):
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 5, (2, 3, size))
    for x, y, rho in zip(a, b, ranking.spearman(a, b), strict=True):
        if np.ptp(x) and np.ptp(y):
            assert rho == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)
        else:
            assert rho == 0


def test_order_breaks_ties_as_the_ranking_of_the_study():
    from vrh_jax.heads.ranking import rank

    means = np.random.default_rng(0).integers(0, 4, (5, 7)).astype(float)
    expected = [layer * 7 + head for layer, head in rank(means)]
    assert ranking.order(means.ravel()).tolist() == expected


def test_split_half_of_pure_noise_and_of_no_noise():
    noise = np.random.default_rng(1).normal(size=(40, 10, 30))
    assert abs(ranking.split_half(noise).value) < 0.15
    exact = np.broadcast_to(np.arange(12.0).reshape(3, 4), (10, 3, 4))
    assert ranking.split_half(exact).value == pytest.approx(1)
    assert ranking.half_overlap(exact, 5).low == 5


def test_halves_are_disjoint_and_equal():
    values = np.arange(9.0)[:, None, None] * np.ones((1, 2, 2))
    first, second = ranking._halves(2.0**values, 20, 0)
    bits = [[int(v) for v in half[:, 0] * 4] for half in (first, second)]
    for a, b in zip(*bits, strict=True):
        assert a & b == 0
        assert a.bit_count() == b.bit_count() == 4


def test_reliability_predicts_a_map_from_twice_the_samples():
    big = scores(2, n=4000, layers=10, heads=20, noise=3.0)
    half = ranking.split_half(big[:400]).value
    # Correlation of two independent maps of 400 samples each.
    fresh = ranking.spearman(big[:400].mean(0).ravel(), big[400:800].mean(0).ravel())
    assert ranking.reliability(half) == pytest.approx(float(fresh), abs=0.06)
    assert ranking.reliability(-0.4) == 0


def test_selection_probability_by_counting():
    values = scores(3)
    found = ranking.selection(values, 5, resamples=200, seed=7)
    maps = ranking.resampled_maps(values, 200, 7)
    counts = np.zeros(24)
    for one in maps:
        for head in sorted(range(24), key=lambda h: (-one[h], h))[:5]:
            counts[head] += 1
    np.testing.assert_allclose(found.probability, counts / 200)
    assert found.probability.sum() == pytest.approx(5)


def test_ties_at_rank_k_are_flagged_and_clear_cuts_are_not():
    rng = np.random.default_rng(4)
    means = np.array([9.0, 8.0, 5.0, 5.0, 1.0, 0.0])
    values = (means + 0.1 * rng.normal(size=(100, 6))).reshape(100, 2, 3)
    clear = ranking.selection(values, 2)
    assert clear.tied == ()
    assert clear.gap.low > 2.5
    tied = ranking.selection(values, 3)
    assert set(tied.tied) <= {2, 3}
    assert len(tied.tied) == 1
    assert tied.gap.low <= 0 <= tied.gap.high
    with pytest.raises(ValueError, match="k = 6 of 6"):
        ranking.selection(values, 6)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12))
def test_sparsity_by_brute_force(values):
    means = np.array(values, float)
    total = means.sum()
    if total == 0:
        assert sparsity.rho_half(means) == sparsity.gini(means) == 0
        return
    fewest = next(
        k
        for k in range(1, len(values) + 1)
        if max(map(sum, itertools.combinations(values, k))) * 2 >= total
    )
    assert sparsity.rho_half(means) == pytest.approx(fewest / len(values))
    differences = np.abs(means[:, None] - means).sum()
    expected = differences / (2 * len(values) ** 2 * means.mean())
    assert sparsity.gini(means) == pytest.approx(expected)


def test_sparsity_bands_hold_the_value():
    found = sparsity.sparsity(np.abs(scores(5)) * 0.002, resamples=300)
    assert set(found) == {"rho_0.5", "gini", "above_0.001", "above_0.005"}
    for value in found.values():
        assert 0 <= value.low <= value.high <= 1
    assert sparsity.above(np.array([-1, 0.5, 0.1, 2]), 0.1) == 0.5


@given(st.permutations(range(9)), st.permutations(range(9)))
def test_overlap_curve_jaccard_and_rbo_by_sets(a, b):
    curve = transfer.overlap_curve(a, b, 9)
    shared = [len(set(a[:k]) & set(b[:k])) for k in range(1, 10)]
    assert curve.tolist() == shared
    assert transfer.jaccard(set(a[:4]), set(b[:4])) == shared[3] / (8 - shared[3])
    # The infinite series: both lists go on with the same heads.
    far = [*shared, *range(10, 400)]
    p = 0.8
    series = sum((1 - p) * p ** (d - 1) * min(n, max(9, d)) / d for d, n in enumerate(far, 1))
    assert transfer.rbo(a, b, p) == pytest.approx(series, abs=1e-9)
    assert transfer.rbo(a, a) == pytest.approx(1)


def test_uniform_chance_by_enumeration():
    chosen = set(range(3))
    counts = [len(chosen & set(c)) for c in itertools.combinations(range(8), 3)]
    found = transfer.uniform_chance(2, 3, 8)
    assert found.expected == pytest.approx(np.mean(counts))
    assert found.p == pytest.approx(np.mean(np.array(counts) >= 2))


def test_published_numbers_of_the_uniform_null():
    found = transfer.uniform_chance(3, 20, 784)
    assert found.expected == pytest.approx(0.51, abs=0.005)
    assert found.p == pytest.approx(0.012, abs=0.0005)


def test_layer_chance_is_the_permutation_within_layers():
    rng = np.random.default_rng(6)
    a, b = np.zeros((2, 3, 5), bool)
    a[0, :2], a[1, :4] = True, True
    b[0, 1:3], b[1, 2:], b[2, 0] = True, True, True
    overlap = int((a & b).sum())
    shuffled = rng.permuted(np.broadcast_to(b, (40_000, 3, 5)), axis=2)
    counts = (shuffled & a).sum(axis=(1, 2))
    found = transfer.layer_chance(overlap, a, b)
    assert found.expected == pytest.approx(counts.mean(), abs=0.02)
    assert found.p == pytest.approx((counts >= overlap).mean(), abs=0.01)
    assert transfer.layer_chance(0, a, b).p == pytest.approx(1)
    # Sets that crowd into the same layers share more by chance than uniform ones.
    assert found.expected > transfer.uniform_chance(overlap, 6, 15).expected


def test_agreement_sees_through_shared_layers():
    rng = np.random.default_rng(7)
    layer = rng.gamma(1.0, size=(8, 1))
    own = [layer * rng.gamma(2.0, size=(8, 10)) for _ in range(2)]
    a, b = (o + 0.01 * rng.normal(size=(40, 8, 10)) for o in own)
    apart = transfer.agreement(a, b, paired=True, resamples=100, permutations=300)
    # Correlated through layers alone: inside the null, and nothing within layers.
    assert apart.spearman.value > 0.25
    assert apart.null.low <= apart.spearman.value <= apart.null.high
    assert abs(apart.within) < 0.35
    assert apart.p > 0.02
    c = own[0] + 0.01 * rng.normal(size=(40, 8, 10))
    same = transfer.agreement(a, c, paired=True, resamples=100, permutations=300)
    assert same.within > 0.9
    assert same.p == pytest.approx(1 / 301)
    assert same.spearman.low <= same.spearman.value <= same.spearman.high + 1e-9
    assert same.spearman.value <= same.ceiling + 0.02
    assert same.layer_only < same.spearman.value


def test_agreement_matches_scipy_for_its_parts():
    a, b = scores(8), scores(9)
    found = transfer.agreement(a, b, paired=False, resamples=50, permutations=50)
    mean_a, mean_b = a.mean(0), b.mean(0)
    assert found.spearman.value == pytest.approx(
        stats.spearmanr(mean_a.ravel(), mean_b.ravel()).statistic
    )
    rows = [stats.spearmanr(x, y).statistic for x, y in zip(mean_a, mean_b, strict=True)]
    assert found.within == pytest.approx(np.mean(rows))
    only = [
        stats.spearmanr(np.repeat(x.mean(1), 6), y.ravel()).statistic
        for x, y in ((mean_a, mean_b), (mean_b, mean_a))
    ]
    assert found.layer_only == pytest.approx(max(only))
