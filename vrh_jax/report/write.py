"""report.html: one file with everything in it, from the files of a finished study."""

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from model_ports.errors import UserError
from vrh_jax.analysis.heads import counted_scores
from vrh_jax.analysis.results import KEY_COLUMNS, Key, make_cells
from vrh_jax.data.sample import Sample
from vrh_jax.engine.store import whole_file
from vrh_jax.report import findings
from vrh_jax.report.accuracy import select, shown_sets
from vrh_jax.report.examples import make_examples
from vrh_jax.report.figures import cell_keys, draw, is_boxes
from vrh_jax.report.gallery import Example, Recorder, draw_example, load_examples
from vrh_jax.report.style import save, set_label
from vrh_jax.study.layout import Layout


def write_report(
    out_dir: Path,
    samples: Mapping[str, Sequence[Sample]] | None = None,
    attention: Recorder | None = None,
) -> Path:
    """Draw the figures and write ``report.html``.

    Args:
        out_dir: folder of a study with ``summary.json``, rows and scores.
        samples: benchmark -> evaluation samples, for the gallery; without them the gallery of
            an earlier report is kept, or there is none.
        attention: gives the attention map of a shown sample.

    Returns:
        Path of the report.

    Raises:
        UserError: the study is not finished.
    """
    layout = Layout(Path(out_dir))
    if not layout.summary.exists():
        raise UserError(
            f"{layout.summary} is not there: the study is not finished; run `vrh study` with its "
            "config first"
        )
    summary = json.loads(layout.summary.read_text())
    gallery = layout.out / "gallery"
    if samples is not None:
        _keep_examples(layout, summary, samples, gallery, attention)
    pictures = draw(summary, _maps(layout, summary), layout.out / "figures")
    page = _render(summary, pictures, _gallery(gallery, layout.out / "figures"))
    path = layout.out / "report.html"
    with whole_file(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return path


def largest_k(summary: Mapping[str, Any]) -> int:
    """The largest number of masked heads: fixed by the settings before any result was seen."""
    return max((e["k"] for e in summary["effects"] if e["heads"] == "vrh"), default=0)


def _maps(layout: Layout, summary: Mapping[str, Any]) -> dict[str, np.ndarray]:
    import xarray as xr

    benchmark = summary["settings"]["detection"]["benchmark"]
    out = {}
    for heads in summary["heads"]:
        with xr.open_dataset(layout.scores(heads["model"], benchmark), engine="h5netcdf") as data:
            out[heads["model"]] = counted_scores(data, heads["method"])[0].mean(axis=0)
    return out


def _keep_examples(
    layout: Layout,
    summary: Mapping[str, Any],
    samples: Mapping[str, Sequence[Sample]],
    gallery: Path,
    attention: Recorder | None,
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    k = largest_k(summary)
    files = sorted((layout.out / "rows").rglob("*.parquet"))
    wanted = [("none", 0), ("vrh", k)]
    tables = [pq.read_table(file) for file in files]
    kept = [
        t for t in tables if t.num_rows and (t["heads"][0].as_py(), t["k"][0].as_py()) in wanted
    ]
    if not kept:
        return
    table = pa.concat_tables(kept)
    by_key: dict[Key, dict[str, Any]] = {}
    for row in table.to_pylist():
        model, benchmark, heads, size, draw_ = (row[c] for c in KEY_COLUMNS)
        by_key.setdefault((model, benchmark, heads, size, draw_), {})[row["sample_id"]] = row
    make_examples(cell_keys(summary), make_cells(table), by_key, samples, k, gallery, attention)


def _gallery(folder: Path, figures: Path) -> list[tuple[Example, str]]:
    """(example, data URI of its figure or "") of every kept example."""
    out = []
    for i, example in enumerate(load_examples(folder)):
        uri = ""
        boxes = (example.before.box, example.after.box)
        if example.image and any(boxes):
            path = figures / f"gallery-{i:03d}.png"
            save(draw_example(example, folder), path)
            uri = data_uri(path)
        elif example.image:  # nothing to draw on it
            uri = data_uri(folder / example.image)
        out.append((example, uri))
    return out


def data_uri(path: Path) -> str:
    """A PNG as a link that needs no other file."""
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()


def _render(
    summary: Mapping[str, Any], pictures: Sequence[Any], gallery: Sequence[tuple[Example, str]]
) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("vrh_jax.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        percent=findings.percent, p_value=findings.p_value, set_label=set_label, uri=data_uri
    )
    k = largest_k(summary)
    pairs = _pairs(summary, k)
    return environment.get_template("report.html.j2").render(
        summary=summary,
        k=k,
        cells=_cells(summary),
        lead=_lead(summary, pairs),
        transfers=[findings.transfer(e) for e in pairs],
        findings=findings,
        pictures=pictures,
        gallery=gallery,
        settings=json.dumps(summary["settings"], indent=1),
    )


def _lead(summary: Mapping[str, Any], pairs: Sequence[Mapping[str, Any]]) -> list[str]:
    """What was found, a sentence per benchmark and per pair of models."""
    own: dict[str, list[Mapping[str, Any]]] = {}
    for model, benchmark in cell_keys(summary):
        effects = select(summary["effects"], model=model, benchmark=benchmark)
        own.setdefault(benchmark, []).extend(filter(None, [_primary(effects)]))
    sentences = [findings.verdict(effects, b) for b, effects in own.items()]
    return [*sentences, *map(findings.sharing, pairs)]


def _primary(effects: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The own heads at the largest k of one model and benchmark."""
    return max(select(effects, heads="vrh"), key=lambda e: e["k"], default=None)


def _pairs(summary: Mapping[str, Any], k: int) -> list[Mapping[str, Any]]:
    """One entry per pair at the largest k; both directions have the same numbers."""
    seen: set[frozenset[str]] = set()
    out = []
    for entry in summary["transfer"]:
        pair = frozenset((entry["source"], entry["target"]))
        if entry["top_k"] == k and pair not in seen:
            seen.add(pair)
            out.append(entry)
    return out


def _cells(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Per model and benchmark: sentences and the rows of its table."""
    sizes = {h["model"]: h["layers"] * h["heads"] for h in summary["heads"]}
    out = []
    for model, benchmark in cell_keys(summary):
        entries = select(summary["accuracy"], model=model, benchmark=benchmark)
        effects = select(summary["effects"], model=model, benchmark=benchmark)
        noun = "boxes" if is_boxes(entries) else "answers"
        base = select(entries, heads="none")
        own = _primary(effects)
        k = own["k"] if own else 0
        sentences = []
        if own:
            after = select(entries, heads="vrh", k=k)
            sentences = findings.masking(own, sizes[model], noun)
            sentences.append(findings.answer_format(base[0], after[0]))
        sentences += [findings.transferred(e, own) for e in _transferred(effects, k)]
        sentences += [
            findings.shortfall(c, k)
            for c in summary.get("controls", ())
            if c["model"] == model and c["k"] == k and c["shortfall"]
        ]
        out.append(
            {
                "model": model,
                "benchmark": benchmark,
                "noun": noun,
                "base": base[0] if base else None,
                "k": k,
                "glance": _glance(own, select(entries, heads="vrh", k=k)),
                "sentences": sentences,
                "rows": [_table_row(entries, heads, size) for heads, size in shown_sets(entries)],
                "effects": effects,
            }
        )
    return out


def _glance(
    own: Mapping[str, Any] | None, after: Sequence[Mapping[str, Any]]
) -> list[float | None]:
    """Shares for the table of all cells: no mask, own heads, both controls, readable."""
    if own is None:
        return []
    controls = [own["controls"].get(kind, {}).get("mean") for kind in ("random_layer", "random")]
    return [own["baseline"], own["accuracy"], *controls, after[0]["readable"]]


def _transferred(effects: Sequence[Mapping[str, Any]], k: int) -> list[Mapping[str, Any]]:
    return [e for e in effects if e["heads"].startswith("transfer:") and e["k"] == k]


def _table_row(entries: Sequence[Mapping[str, Any]], heads: str, k: int) -> dict[str, Any]:
    """One line of the table of a model and benchmark; draws are averaged."""
    draws = select(entries, heads=heads, k=k)
    mean = sum(e["accuracy"] for e in draws) / len(draws)
    alone = heads not in findings.CONTROL_NAMES
    ends = [e["accuracy"] for e in draws]
    low, high = (draws[0]["ci_low"], draws[0]["ci_high"]) if alone else (min(ends), max(ends))
    return {
        "heads": heads,
        "k": k,
        "draws": len(draws),
        "n": draws[0]["n"],
        "accuracy": mean,
        "low": low,
        "high": high,
        "readable": sum(e["readable"] for e in draws) / len(draws),
        "mislocated": sum(e["mislocated"] for e in draws) / sum(e["n"] for e in draws),
        "mean_iou": None
        if draws[0]["mean_iou"] is None
        else sum(e["mean_iou"] for e in draws) / len(draws),
    }
