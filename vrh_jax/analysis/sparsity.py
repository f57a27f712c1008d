"""How few heads hold the scores."""

import numpy as np

from vrh_jax.analysis.paired import Interval, percentile
from vrh_jax.analysis.ranking import resampled_maps


def rho_half(means: np.ndarray) -> np.ndarray:
    """Smallest share of heads that holds half of the positive score (2605.27243).

    Args:
        means: [.., M].

    Returns:
        [..]; 0 where no score is positive.
    """
    positive = -np.sort(-np.maximum(means, 0), axis=-1)
    total = positive.sum(axis=-1, keepdims=True)
    # Rounding must not ask for one head more than needed.
    reached = np.cumsum(positive, axis=-1) >= 0.5 * total * (1 - 1e-12)
    count = reached.argmax(axis=-1) + 1
    return np.where(total[..., 0] > 0, count / means.shape[-1], 0.0)


def gini(means: np.ndarray) -> np.ndarray:
    """Gini coefficient of the positive scores along the last axis: 0 even, near 1 one head."""
    values = np.sort(np.maximum(means, 0), axis=-1)
    size = values.shape[-1]
    total = values.sum(axis=-1)
    weighted = (values * (2 * np.arange(1, size + 1) - size - 1)).sum(axis=-1)
    return np.where(total > 0, weighted / np.where(total > 0, size * total, 1), 0.0)


def above(means: np.ndarray, threshold: float) -> np.ndarray:
    """Share of heads with a score above a fixed threshold (depends on the score's scale)."""
    return np.asarray((means > threshold).mean(axis=-1))


def sparsity(scores: np.ndarray, *, resamples: int = 1000, seed: int = 0) -> dict[str, Interval]:
    """All measures with bootstrap bands over samples.

    Args:
        scores: [n, L, N].

    Returns:
        ``rho_0.5``, ``gini``, ``above_0.001`` and ``above_0.005`` (the paper's thresholds).
    """
    flat = np.asarray(scores, np.float64).reshape(len(scores), -1)
    means, maps = flat.mean(axis=0), resampled_maps(scores, resamples, seed)
    measures = {
        "rho_0.5": rho_half,
        "gini": gini,
        "above_0.001": lambda m: above(m, 0.001),
        "above_0.005": lambda m: above(m, 0.005),
    }
    return {name: percentile(float(f(means)), f(maps)) for name, f in measures.items()}
