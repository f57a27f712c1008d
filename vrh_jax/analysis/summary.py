"""All numbers of a study from its rows and head scores, and from nothing else."""

from collections.abc import Mapping
from typing import Any

from vrh_jax.analysis.aggregates import aggregates
from vrh_jax.analysis.effects import accuracy, by_task, effects
from vrh_jax.analysis.heads import compare, describe
from vrh_jax.analysis.intervals import failure_split
from vrh_jax.analysis.paired import RESAMPLES
from vrh_jax.analysis.results import make_cells

MAP_RESAMPLES = 1000
SEED = 0


def summarise(
    rows: Any,
    scores: Mapping[str, Any],
    settings: Mapping[str, Any],
    *,
    resamples: int = RESAMPLES,
) -> dict[str, Any]:
    """Numbers for ``summary.json``.

    Args:
        rows: pyarrow Table of all result rows.
        scores: model name -> xarray Dataset (sample, layer, head) of its detection samples.
        settings: the study's settings (``StudyConfig.settings()``); used are ``ks``,
            ``scoring.method`` and ``transfer``.
        resamples: bootstrap resamples of accuracy differences.

    Returns:
        ``accuracy`` (per model, benchmark, head set and draw), ``tasks`` (the same per task of
        mixed benchmarks), ``aggregates`` (official scores beside plain means), ``failures``,
        ``effects`` (drops and controls), ``heads`` (rankings, stability, sparsity per model),
        ``transfer`` and ``overlap_curves``.
    """
    cells = make_cells(rows)
    method = settings.get("scoring", {}).get("method", "region_sum")
    ks = sorted({*settings.get("ks", ()), *(c.k for c in cells.values() if c.heads == "vrh")})
    transfer = settings.get("transfer", {})
    entries, curves = [], []
    for pair in transfer.get("pairs", ()):
        found, curve = compare(
            pair,
            scores,
            method,
            ks,
            resamples=MAP_RESAMPLES,
            permutations=transfer.get("permutations", 2000),
            seed=SEED,
        )
        entries += found
        curves += [curve] if curve else []
    return {
        "accuracy": [accuracy(cell) for cell in cells.values()],
        "tasks": by_task(cells),
        "aggregates": aggregates(cells),
        "failures": [
            {
                **dict(zip(("model", "benchmark", "heads", "k", "draw"), key, strict=True)),
                "n": len(cell.failure),
                "split": failure_split(cell.failure.tolist()),
            }
            for key, cell in cells.items()
        ],
        "effects": effects(cells, resamples=resamples, seed=SEED),
        "heads": [
            describe(model, data, method, ks, resamples=MAP_RESAMPLES, seed=SEED)
            for model, data in scores.items()
        ],
        "transfer": entries,
        "overlap_curves": curves,
    }
