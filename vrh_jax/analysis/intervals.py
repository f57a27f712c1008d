"""Intervals for shares."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from scipy.stats import norm

FAILURES = ("parse_failure", "invalid_box", "mislocated", "wrong_answer", "image_error")


def wilson(successes: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson score interval of a share, (low, high); (0, 1) without observations."""
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}")
    if n == 0:
        return 0.0, 1.0
    z = float(norm.ppf(0.5 + level / 2))
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    # Exact at the ends, where rounding would exclude the share itself.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return low, high


def failure_split(failures: Iterable[str], kinds: Sequence[str] = FAILURES) -> list[dict[str, Any]]:
    """Count and share of every kind of failure with its Wilson interval.

    Args:
        failures: one word per answer, "" for a right one.
        kinds: reported in this order, also when they do not occur.

    Raises:
        ValueError: for a word that is not among ``kinds``.
    """
    given = list(failures)
    unknown = set(given) - {"", *kinds}
    if unknown:
        raise ValueError(f"unknown failure {min(unknown)!r}; known are {', '.join(kinds)}")
    out = []
    for kind in kinds:
        count = given.count(kind)
        low, high = wilson(count, len(given))
        share = count / len(given) if given else 0.0
        out.append({"kind": kind, "count": count, "share": share, "low": low, "high": high})
    return out
