"""summary.json and the report, recomputed from rows and scores; no model is needed."""

import importlib.metadata
import json
import platform
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from model_ports.errors import UserError
from vrh_jax.data.sample import Sample
from vrh_jax.engine.store import write_json
from vrh_jax.study.detection import controls_of, read_heads
from vrh_jax.study.layout import Layout
from vrh_jax.study.state import State, read_state

if TYPE_CHECKING:
    from vrh_jax.report.gallery import Recorder

PACKAGES = ("vrh-jax", "jax", "jaxlib", "flax", "transformers", "numpy", "xarray", "pyarrow")


def read_summary(layout: Layout) -> dict[str, Any]:
    """The written summary."""
    return dict(json.loads(layout.summary.read_text()))


def versions() -> dict[str, str]:
    """Python and the packages that results may depend on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def read_table(layout: Layout) -> Any:
    """All result rows as one pyarrow Table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = sorted((layout.out / "rows").rglob("*.parquet"))
    if not files:
        raise UserError(f"{layout.out}: there are no result rows yet; run `vrh study` first")
    return pa.concat_tables([pq.read_table(file) for file in files])


def read_scores(layout: Layout, state: State) -> dict[str, Any]:
    """Model name -> its score Dataset (sample, layer, head), in memory."""
    import xarray as xr

    benchmark = state.settings["detection"]["benchmark"]
    out = {}
    for model in state.settings["models"]:
        path = layout.scores(model["name"], benchmark)
        if not path.exists():
            raise UserError(f"{path} is missing; run `vrh study` again to score {model['name']!r}")
        with xr.open_dataset(path, engine="h5netcdf") as data:
            out[model["name"]] = data.load()
    return out


def control_pools(layout: Layout, state: State) -> list[dict[str, Any]]:
    """From how many heads each control was drawn, and what could not be matched."""
    benchmark = state.settings["detection"]["benchmark"]
    return [
        {"model": m["name"], "k": k, "kind": c.kind, "pool": c.pool, "shortfall": c.shortfall}
        for m in state.settings["models"]
        for k, kinds in controls_of(read_heads(layout, m["name"], benchmark)).items()
        for c in kinds
    ]


def write_results(
    layout: Layout,
    samples: Mapping[str, Sequence[Sample]] | None = None,
    attention: "Recorder | None" = None,
) -> dict[str, Any]:
    """Write summary.json, then the figures and report.html.

    Args:
        samples: benchmark -> evaluated samples, for the report's gallery; without them the
            gallery of an earlier report is kept.
        attention: gives the attention map of a shown sample.

    Raises:
        UserError: the folder holds no finished rows and scores.
    """
    from vrh_jax.analysis.summary import summarise
    from vrh_jax.report import write_report

    state = read_state(layout)
    table, scores = read_table(layout), read_scores(layout, state)
    summary = {
        "study": state.settings["name"],
        **summarise(table, scores, state.settings),
        "controls": control_pools(layout, state),
        "versions": versions(),
        "settings": {"hash": state.hash, **state.settings},
        "fingerprints": state.fingerprints,
        "prompts": state.prompts,
        "wall_s": round(state.wall_s, 1),
    }
    write_json(layout.summary, summary)
    write_report(layout.out, samples, attention)
    return summary


def compare_models(layout: Layout) -> list[dict[str, Any]]:
    """The list ``transfer`` of the summary, from head scores alone."""
    from vrh_jax.analysis.heads import compare
    from vrh_jax.analysis.summary import MAP_RESAMPLES, SEED

    state = read_state(layout)
    scores = read_scores(layout, state)
    entries: list[dict[str, Any]] = []
    for pair in state.settings["transfer"]["pairs"]:
        found, _ = compare(
            pair,
            scores,
            state.settings["scoring"]["method"],
            state.settings["ks"],
            resamples=MAP_RESAMPLES,
            permutations=state.settings["transfer"]["permutations"],
            seed=SEED,
        )
        entries += found
    return entries
