"""How stable a ranking of heads is over the samples that it was made from.

Axis letters: n samples, L layers, N heads, M = L * N, B resamples. Ties are broken as in
``vrh_jax.heads.ranking``: the lower layer, then the lower head first.
"""

import dataclasses

import numpy as np
from scipy.stats import rankdata

from vrh_jax.analysis.paired import Interval, bootstrap_weights, percentile


def order(means: np.ndarray) -> np.ndarray:
    """Flat head indices, best first, along the last axis; [.., M] -> [.., M]."""
    return np.argsort(-means, axis=-1, kind="stable")


def resampled_maps(scores: np.ndarray, resamples: int, seed: int) -> np.ndarray:
    """Mean score maps under resampling of samples, float64 [B, M].

    Args:
        scores: [n, L, N] or [n, M].
    """
    n = len(scores)
    flat = np.asarray(scores, np.float64).reshape(n, -1)
    return bootstrap_weights(n, resamples, seed).astype(np.float64) @ flat / n


def spearman(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Spearman's rho along the last axis; 0 where a side is constant.

    Args:
        a, b: [.., M] with the same shape.
    """
    x, y = (rankdata(v, axis=-1) for v in (a, b))
    x = x - x.mean(axis=-1, keepdims=True)
    y = y - y.mean(axis=-1, keepdims=True)
    scale = np.sqrt((x * x).sum(axis=-1) * (y * y).sum(axis=-1))
    together = (x * y).sum(axis=-1)
    return np.asarray(np.where(scale > 0, together / np.where(scale > 0, scale, 1), 0.0))


def _halves(scores: np.ndarray, repeats: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean maps of disjoint random halves, two of [repeats, M]."""
    n = len(scores)
    flat = np.asarray(scores, np.float64).reshape(n, -1)
    rng = np.random.default_rng(seed)
    first, second = [], []
    for _ in range(repeats):
        shuffled = rng.permutation(n)
        first.append(flat[shuffled[: n // 2]].mean(axis=0))
        second.append(flat[shuffled[n // 2 : n // 2 * 2]].mean(axis=0))
    return np.array(first), np.array(second)


def split_half(scores: np.ndarray, *, repeats: int = 100, seed: int = 0) -> Interval:
    """Spearman's rho between the maps of disjoint halves: median and 90 % band of repeats."""
    rhos = spearman(*_halves(scores, repeats, seed))
    return percentile(float(np.median(rhos)), rhos, 0.9)


def reliability(half: float) -> float:
    """Reliability of the whole map from that of its halves (Spearman-Brown), at least 0."""
    return max(0.0, 2 * half / (1 + half)) if half > -1 else 0.0


def half_overlap(scores: np.ndarray, k: int, *, repeats: int = 100, seed: int = 0) -> Interval:
    """Heads shared by the top k of disjoint halves: median and 90 % band of repeats."""
    first, second = (order(m)[:, :k] for m in _halves(scores, repeats, seed))
    shared = np.array([len(np.intersect1d(a, b)) for a, b in zip(first, second, strict=True)])
    return percentile(float(np.median(shared)), shared, 0.9)


@dataclasses.dataclass(frozen=True)
class Selection:
    """The top k under resampling of samples.

    Attributes:
        probability: [M], how often each head is in the top k.
        gap: score of rank k minus score of rank k + 1 (of the ranking on all samples).
        tied: heads outside the top k that cannot be told from rank k: the interval of their
            difference to it holds 0.
    """

    probability: np.ndarray
    gap: Interval
    tied: tuple[int, ...]


def selection(
    scores: np.ndarray, k: int, *, resamples: int = 1000, seed: int = 0, level: float = 0.95
) -> Selection:
    """Selection probabilities, and whether rank k is told from what follows it.

    Args:
        scores: [n, L, N].
    """
    maps = resampled_maps(scores, resamples, seed)
    size = maps.shape[1]
    if not 0 < k < size:
        raise ValueError(f"k = {k} of {size} heads")
    top = order(maps)[:, :k]
    probability = np.bincount(top.ravel(), minlength=size) / resamples
    means = np.asarray(scores, np.float64).reshape(len(scores), -1).mean(axis=0)
    ranked = order(means)
    last, after = ranked[k - 1], ranked[k:]
    differences = maps[:, [last]] - maps[:, after]
    lows = np.quantile(differences, (1 - level) / 2, axis=0)
    gap = percentile(float(means[last] - means[after[0]]), differences[:, 0], level)
    return Selection(probability, gap, tuple(int(h) for h in after[lows <= 0]))
