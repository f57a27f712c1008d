"""How far two models' head maps agree, against what layers alone would give.

Axis letters: n samples, L layers, N heads, M = L * N. Heads of one kind crowd into few
layers, so a null that ignores layers understates chance; both are computed.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from scipy.stats import hypergeom

from vrh_jax.analysis.paired import Interval, percentile, permutation_p
from vrh_jax.analysis.ranking import (
    order,
    reliability,
    resampled_maps,
    spearman,
    split_half,
)


def overlap_curve(a: Sequence[int], b: Sequence[int], k_max: int) -> np.ndarray:
    """Number of heads in both top k for k = 1..k_max, int [k_max]; a, b are rankings."""
    seen_a: set[int] = set()
    seen_b: set[int] = set()
    shared, curve = 0, []
    for one, other in zip(a[:k_max], b[:k_max], strict=True):
        seen_a.add(int(one))
        seen_b.add(int(other))
        shared += (int(one) in seen_b) + (int(other) in seen_a) - (int(one) == int(other))
        curve.append(shared)
    return np.array(curve, np.int64)


def jaccard(a: set[int], b: set[int]) -> float:
    """Shared heads over all heads of two sets."""
    return len(a & b) / len(a | b) if a | b else 1.0


def rbo(a: Sequence[int], b: Sequence[int], p: float = 0.9) -> float:
    """Rank-biased overlap of two complete rankings of the same heads (Webber et al. 2010)."""
    agreement = overlap_curve(a, b, len(a)) / np.arange(1, len(a) + 1)
    weights = (1 - p) * p ** np.arange(len(a))
    # Beyond the last rank both lists hold the same heads.
    return float((weights * agreement).sum() + p ** len(a))


@dataclasses.dataclass(frozen=True)
class Chance:
    """Expected overlap under a null, and the probability of at least the observed one."""

    expected: float
    p: float


def uniform_chance(overlap: int, k: int, heads: int) -> Chance:
    """Two independent uniform sets of k heads (hypergeometric)."""
    return Chance(k * k / heads, float(hypergeom.sf(overlap - 1, heads, k, k)))


def layer_chance(overlap: int, a: np.ndarray, b: np.ndarray) -> Chance:
    """Heads permuted within each layer: counts per layer stay, who it is does not matter.

    The overlaps of the layers are independent hypergeometric counts, so the permutation
    distribution is their convolution, exact and without draws.

    Args:
        a, b: bool [L, N], the two sets.
    """
    n_heads = a.shape[1]
    total = np.ones(1)
    for in_a, in_b in zip(a.sum(axis=1), b.sum(axis=1), strict=True):
        most = int(min(in_a, in_b))
        total = np.convolve(total, hypergeom.pmf(np.arange(most + 1), n_heads, in_a, in_b))
    counts = np.arange(len(total))
    return Chance(float((counts * total).sum()), float(min(total[overlap:].sum(), 1.0)))


def within_layer(a: np.ndarray, b: np.ndarray) -> float:
    """Mean over layers of Spearman's rho inside the layer; maps [L, N]."""
    return float(spearman(a, b).mean())


def layer_only(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's rho of the second map [L, N] with the layer means of the first."""
    means = np.repeat(a.mean(axis=1, keepdims=True), a.shape[1], axis=1)
    return float(spearman(means.ravel(), b.ravel()))


def _permuted(
    a: np.ndarray, b: np.ndarray, permutations: int, seed: int
) -> tuple[Interval, np.ndarray]:
    """Spearman's rho of two maps [L, N] when heads are permuted within layers: mean and central
    95 %, and all values."""
    rng = np.random.default_rng(seed)
    shuffled = rng.permuted(np.broadcast_to(b, (permutations, *b.shape)), axis=2)
    flat = shuffled.reshape(permutations, -1)
    null = spearman(np.broadcast_to(a.ravel(), flat.shape), flat)
    return percentile(float(null.mean()), null), null


@dataclasses.dataclass(frozen=True)
class Agreement:
    """Correlation of two score maps, with what it is to be read against.

    Attributes:
        spearman: rho over all heads, interval from resampling samples.
        top: rho over the union of the two top 100 (or top quarters, if fewer).
        within: mean rho inside layers.
        layer_only: rho that the layer means alone give, the larger of both directions.
        null: rho with heads permuted within layers, mean and central 95 %.
        p: permutation p of the observed rho against that null.
        reliability: of the two maps, from split halves.
        ceiling: sqrt of the product of both; noise keeps rho below it.
    """

    spearman: Interval
    top: float
    within: float
    layer_only: float
    null: Interval
    p: float
    reliability: tuple[float, float]
    ceiling: float


def agreement(
    a: np.ndarray,
    b: np.ndarray,
    *,
    paired: bool,
    resamples: int = 1000,
    permutations: int = 2000,
    seed: int = 0,
) -> Agreement:
    """Compare two models' scores per sample.

    Args:
        a, b: [n, L, N] with the same layers and heads.
        paired: the samples are the same and in the same order; they are resampled together.
    """
    mean_a, mean_b = (np.asarray(s, np.float64).mean(axis=0) for s in (a, b))
    flat_a, flat_b = mean_a.ravel(), mean_b.ravel()
    rho = float(spearman(flat_a, flat_b))
    maps_a = resampled_maps(a, resamples, seed)
    maps_b = resampled_maps(b, resamples, seed if paired else seed + 1)
    null, draws = _permuted(mean_a, mean_b, permutations, seed)
    best = min(100, max(2, flat_a.size // 4))
    union = np.union1d(order(flat_a)[:best], order(flat_b)[:best])
    first, second = (reliability(split_half(s, seed=seed).value) for s in (a, b))
    return Agreement(
        spearman=percentile(rho, spearman(maps_a, maps_b)),
        top=float(spearman(flat_a[union], flat_b[union])),
        within=within_layer(mean_a, mean_b),
        layer_only=max(layer_only(mean_a, mean_b), layer_only(mean_b, mean_a)),
        null=null,
        p=permutation_p(rho, draws),
        reliability=(first, second),
        ceiling=float(np.sqrt(first * second)),
    )
