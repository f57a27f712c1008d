"""The ranking of heads of each model, its stability, and agreement between models.

Axis letters: n detection samples, L layers, N heads, M = L * N.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vrh_jax.analysis.effects import interval
from vrh_jax.analysis.ranking import (
    half_overlap,
    order,
    reliability,
    resampled_maps,
    selection,
    split_half,
)
from vrh_jax.analysis.sparsity import sparsity
from vrh_jax.analysis.transfer import (
    agreement,
    jaccard,
    layer_chance,
    overlap_curve,
    rbo,
    uniform_chance,
)

CURVE = 100


def counted_scores(data: Any, method: str) -> tuple[np.ndarray, np.ndarray]:
    """(scores float64 [n, L, N], sample ids [n]) of the samples that count.

    Args:
        data: xarray Dataset of one model, with ``counted`` if some samples do not.
    """
    values = np.asarray(data[method].values, np.float64)
    ids = np.asarray(data["sample"].values).astype(str)
    if "counted" in data:
        keep = np.asarray(data["counted"].values, bool)
        return values[keep], ids[keep]
    return values, ids


def describe(
    model: str, data: Any, method: str, ks: Sequence[int], *, resamples: int, seed: int
) -> dict[str, Any]:
    """Ranking, stability and sparsity of one model's scores."""
    scores, _ = counted_scores(data, method)
    _, layers, n_heads = scores.shape
    means = scores.mean(axis=0).ravel()
    maps = resampled_maps(scores, resamples, seed)
    low, high = np.quantile(maps, [0.025, 0.975], axis=0)
    ranked = order(means)
    sizes = [k for k in ks if 0 < k < means.size]
    selected = {k: selection(scores, k, resamples=resamples, seed=seed) for k in sizes}
    half = split_half(scores, seed=seed)
    shown = ranked[: max([*sizes, 20])]
    return {
        "model": model,
        "method": method,
        "layers": layers,
        "heads": n_heads,
        "samples": int(data.sizes["sample"]),
        "counted": len(scores),
        "top": [
            {
                "rank": rank,
                "layer": int(h) // n_heads,
                "head": int(h) % n_heads,
                "score": float(means[h]),
                "score_low": float(low[h]),
                "score_high": float(high[h]),
                "selected": {str(k): float(s.probability[h]) for k, s in selected.items()},
            }
            for rank, h in enumerate(shown, start=1)
        ],
        "stability": {
            **interval("split_half", half),
            "reliability": reliability(half.value),
            "top_k": [
                {
                    "k": k,
                    **interval("half_overlap", half_overlap(scores, k, seed=seed)),
                    **interval("gap", s.gap),
                    "tied": [[h // n_heads, h % n_heads] for h in s.tied],
                }
                for k, s in selected.items()
            ],
        },
        "sparsity": {
            name: interval("value", value)
            for name, value in sparsity(scores, resamples=resamples, seed=seed).items()
        },
    }


def compare(
    pair: Mapping[str, Any],
    scores: Mapping[str, Any],
    method: str,
    ks: Sequence[int],
    *,
    resamples: int,
    permutations: int,
    seed: int,
) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Agreement of a pair of models: entries per direction and k, and the overlap curve.

    Two models with different numbers of layers or heads have no common heads; they give
    nothing.
    """
    first, second = pair["models"]
    (a, ids_a), (b, ids_b) = (counted_scores(scores[m], method) for m in (first, second))
    if a.shape[1:] != b.shape[1:]:
        return [], None
    common = np.intersect1d(ids_a, ids_b)
    paired = len(common) > 1
    if paired:
        a = a[[int(np.flatnonzero(ids_a == i)[0]) for i in common]]
        b = b[[int(np.flatnonzero(ids_b == i)[0]) for i in common]]
    match = agreement(
        a, b, paired=paired, resamples=resamples, permutations=permutations, seed=seed
    )
    shared = {
        "backbone": pair.get("backbone", "shared"),
        "samples": len(a),
        **interval("spearman", match.spearman),
        "spearman_top": match.top,
        "within_layer": match.within,
        "layer_only": match.layer_only,
        **interval("null", match.null),
        "p_null": match.p,
        "ceiling": match.ceiling,
    }
    # Overlap compares the sets that were masked: rankings on all samples that counted.
    maps = [counted_scores(scores[m], method)[0].mean(axis=0) for m in (first, second)]
    ranked = [order(m.ravel()) for m in maps]
    entries = []
    for k in ks:
        common_k = _overlap(ranked, maps[0].shape, k)
        for source, target in ((first, second), (second, first)):
            entries.append({"source": source, "target": target, "top_k": k, **common_k, **shared})
    return entries, {"source": first, "target": second, **_curve(ranked, maps[0].shape)}


def _sets(ranked: Sequence[np.ndarray], shape: tuple[int, ...], k: int) -> list[np.ndarray]:
    """bool [L, N] per ranking, true for its top k."""
    out = []
    for one in ranked:
        chosen = np.zeros(shape[0] * shape[1], bool)
        chosen[one[:k]] = True
        out.append(chosen.reshape(shape))
    return out


def _overlap(ranked: Sequence[np.ndarray], shape: tuple[int, ...], k: int) -> dict[str, Any]:
    tops = [{int(h) for h in one[:k]} for one in ranked]
    overlap = len(tops[0] & tops[1])
    uniform = uniform_chance(overlap, k, shape[0] * shape[1])
    layered = layer_chance(overlap, *_sets(ranked, shape, k))
    return {
        "overlap": overlap,
        "overlap_share": overlap / k,
        "expected_uniform": uniform.expected,
        "p_uniform": uniform.p,
        "expected_layer": layered.expected,
        "p_layer": layered.p,
        "jaccard": jaccard(*tops),
        "rbo": rbo(*(one.tolist() for one in ranked)),
    }


def _curve(ranked: Sequence[np.ndarray], shape: tuple[int, ...]) -> dict[str, list[Any]]:
    size = shape[0] * shape[1]
    k_max = min(CURVE, size)
    curve = overlap_curve(ranked[0].tolist(), ranked[1].tolist(), k_max)
    chance = [layer_chance(0, *_sets(ranked, shape, k)).expected for k in range(1, k_max + 1)]
    return {
        "overlap": curve.tolist(),
        "expected_uniform": [k * k / size for k in range(1, k_max + 1)],
        "expected_layer": chance,
    }
