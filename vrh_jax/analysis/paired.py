"""Comparisons of head sets on the same samples.

Axis letters: n samples, C clusters (images), B resamples, R control draws. Everything is
paired by sample, and whole clusters are resampled, since expressions of one image go together.
"""

import dataclasses
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy.stats import binomtest

RESAMPLES = 10_000


@dataclasses.dataclass(frozen=True)
class Interval:
    """An estimate with its percentile interval."""

    value: float
    low: float
    high: float


def mcnemar(first: np.ndarray, second: np.ndarray) -> tuple[int, int, float]:
    """Exact McNemar test of two right/wrong vectors over the same samples.

    Returns:
        (right only in the first, right only in the second, two-sided p; 1 without any).
    """
    first, second = np.asarray(first, bool), np.asarray(second, bool)
    b, c = int((first & ~second).sum()), int((~first & second).sum())
    return b, c, float(binomtest(b, b + c, 0.5).pvalue) if b + c else 1.0


@lru_cache(maxsize=16)  # the same clusters come back for every head set
def bootstrap_weights(clusters: int, resamples: int, seed: int) -> np.ndarray:
    """How often each cluster is drawn in each resample, uint16 [B, C]; do not change it."""
    drawn = np.random.default_rng(seed).integers(0, clusters, size=(resamples, clusters))
    drawn += np.arange(resamples)[:, None] * clusters
    counts = np.bincount(drawn.ravel(), minlength=resamples * clusters)
    return counts.reshape(resamples, clusters).astype(np.uint16)


def resampled_means(
    values: np.ndarray, groups: Sequence[str] | np.ndarray, *, resamples: int, seed: int
) -> np.ndarray:
    """Means of columns under resampling of whole clusters, float64 [B, columns].

    The same seed and groups give the same resamples, so columns of two calls stay paired.

    Args:
        values: [n, columns].
        groups: [n], the cluster of each sample.
    """
    _, cluster = np.unique(np.asarray(groups), return_inverse=True)
    clusters = int(cluster.max()) + 1
    sums = np.zeros((clusters, values.shape[1]))
    np.add.at(sums, cluster, np.asarray(values, np.float64))
    sizes = np.bincount(cluster, minlength=clusters).astype(np.float64)
    out = np.empty((resamples, values.shape[1]))
    chunk = max(1, 5_000_000 // clusters)  # bounds the memory of the weights
    for i, start in enumerate(range(0, resamples, chunk)):
        size = min(chunk, resamples - start)
        weights = bootstrap_weights(clusters, size, seed + i).astype(np.float64)
        out[start : start + size] = weights @ sums / (weights @ sizes)[:, None]
    return out


def percentile(value: float, resampled: np.ndarray, level: float = 0.95) -> Interval:
    """Percentile interval around an estimate."""
    low, high = np.quantile(resampled, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(value), float(low), float(high))


def paired_difference(
    first: np.ndarray,
    second: np.ndarray,
    groups: Sequence[str] | np.ndarray,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Mean of ``first - second`` over samples, clusters resampled together."""
    difference = np.asarray(first, np.float64) - np.asarray(second, np.float64)
    means = resampled_means(difference[:, None], groups, resamples=resamples, seed=seed)
    return percentile(float(difference.mean()), means[:, 0])


def effect_over_controls(
    chosen: np.ndarray,
    controls: np.ndarray,
    groups: Sequence[str] | np.ndarray,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """How much further the chosen set lowers accuracy than control sets do on average.

    Two-level bootstrap: clusters of samples and control draws are both resampled. With one
    draw there is nothing to resample on the second level, and the interval is that of the
    samples alone; callers say so.

    Args:
        chosen: right or wrong [n] with the chosen heads masked.
        controls: [R, n] with each control set masked.
        groups: [n].
    """
    draws = len(controls)
    stacked = np.vstack([np.asarray(chosen)[None], controls]).astype(np.float64)
    means = resampled_means(stacked.T, groups, resamples=resamples, seed=seed)
    rng = np.random.default_rng([seed, 1])
    picked = rng.integers(0, draws, size=(resamples, draws))
    control = np.take_along_axis(means[:, 1:], picked, axis=1).mean(axis=1)
    value = float(stacked[1:].mean() - stacked[0].mean())
    return percentile(value, control - means[:, 0])


def permutation_p(observed: float, null: np.ndarray) -> float:
    """(1 + #{null >= observed}) / (R + 1), with a tolerance for rounding."""
    null = np.asarray(null, np.float64)
    return float((1 + (null >= observed - 1e-12).sum()) / (len(null) + 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given."""
    p = np.asarray(p_values, np.float64)
    order = np.argsort(p, kind="stable")
    steps = p[order] * np.arange(len(p), 0, -1)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0) if len(p) else steps
    return [float(v) for v in adjusted]
