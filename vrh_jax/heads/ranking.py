"""From scores per sample to a ranking of heads.

Axis letters: L layers, N query heads; n samples.
"""

import numpy as np

from model_ports.errors import UserError
from vrh_jax.heads.masks import Head, HeadSet


def mean_scores(scores: np.ndarray, counted: np.ndarray, failure: str = "") -> np.ndarray:
    """Mean over the counted samples.

    Args:
        scores: [n, L, N].
        counted: bool [n]; the gate, and samples without a scored row are False.
        failure: why a sample could not be asked, for the message if none counts.

    Returns:
        float64 [L, N].
    """
    if not counted.any():
        raise UserError(
            "no detection sample counts: all failed, or the gate (scoring.gate) excludes them; "
            "use gate: all, other samples or another model"
            + (f". The first failure: {failure}" if failure else "")
        )
    return np.asarray(scores[counted].astype(np.float64).mean(axis=0))


def rank(scores: np.ndarray) -> list[Head]:
    """All heads, highest score first; ties go to the lower layer, then the lower head.

    Args:
        scores: [L, N], finite.
    """
    if not np.isfinite(scores).all():
        layer, head = (int(i) for i in np.argwhere(~np.isfinite(scores))[0])
        raise UserError(f"the score of head ({layer}, {head}) is not finite; check the weights")
    order = np.argsort(-scores, axis=None, kind="stable")
    n_heads = scores.shape[1]
    return [(int(i) // n_heads, int(i) % n_heads) for i in order]


def top(ranking: list[Head], k: int) -> HeadSet:
    """The first k heads."""
    if not 0 < k <= len(ranking):
        raise UserError(f"k = {k}, but the model has {len(ranking)} heads")
    return frozenset(ranking[:k])
