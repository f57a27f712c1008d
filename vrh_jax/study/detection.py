"""Detection: the model answers, its answer rows are scored, heads are ranked."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from vrh_jax.config import StudyConfig
from vrh_jax.data.sample import Sample
from vrh_jax.engine import distributed
from vrh_jax.engine.batching import Ready, Task, blocks, prefetch, prepare
from vrh_jax.engine.runner import Progress, Stop
from vrh_jax.engine.session import Answer, Session
from vrh_jax.engine.store import Parts, Row, whole_file, write_json
from vrh_jax.heads.controls import Control
from vrh_jax.heads.masks import Head
from vrh_jax.heads.ranking import mean_scores, rank
from vrh_jax.heads.scoring import SCORES
from vrh_jax.study.layout import Layout
from vrh_jax.study.masks import BASELINE, controls_for
from vrh_jax.study.rows import make_row, write_rows

PARSED = ("", "mislocated", "wrong_answer")


def prepare_all(session: Session, tasks: Sequence[Task]) -> list[Ready]:
    """Prepare a block; runs on a worker thread."""
    return [prepare(session.model.processor, task) for task in tasks]


def agreed(block: Sequence[Ready]) -> list[Ready]:
    """The block with every image failed that any process cannot read.

    All processes must compute the same batches; a file that one host lacks would otherwise leave
    the others waiting in a collective forever.
    """
    failed = distributed.any_processes([item.prompt is None for item in block])
    elsewhere = "another process of this run cannot read the image; give all hosts the same files"
    return [
        dataclasses.replace(item, prompt=None, error=elsewhere)
        if bad and item.prompt is not None
        else item
        for item, bad in zip(block, failed, strict=True)
    ]


def answer_block(
    session: Session, block: Sequence[Ready], mask: np.ndarray | None = None
) -> list[Answer | None]:
    """Answers of one block in its order; None where the image cannot be read."""
    usable = [r for r in block if r.prompt is not None]
    answers: dict[str, Answer] = {}
    if usable:
        embedded = session.embed([r.prompt for r in usable if r.prompt is not None])
        found = session.answer(embedded, len(usable), usable[0].task.prompt.max_new, mask)
        answers = {r.sample.id: a for r, a in zip(usable, found, strict=True)}
    return [answers.get(r.sample.id) for r in block]


def detect(
    session: Session, tasks: Sequence[Task], config: StudyConfig, layout: Layout, stop: Stop
) -> None:
    """Answer, score and rank for one model; finished work is kept and skipped.

    Writes the score file, the rows and the ranking of ``Layout``.
    """
    model, benchmark = session.model, config.detection.benchmark
    parts = Parts(layout.parts("detection", model.name, benchmark))
    done = set(distributed.agree([row["sample_id"] for row in parts.rows()]))
    progress = Progress(
        f"{model.name}: scoring heads on {benchmark}",
        len(tasks),
        len(done),
        stream=sys.stderr if distributed.is_main() else None,
    )
    size = session.batch.generate
    pending = [b for b in blocks(tasks, size) if not all(t.sample.id in done for t in b)]
    for prepared in prefetch(pending, partial(prepare_all, session), session.batch.workers):
        stop.check(distributed.any_process)
        block = agreed(prepared)
        answers = answer_block(session, block)
        rows, arrays = _score_block(session, block, answers, config)
        if distributed.is_main():
            parts.add(rows, arrays)
        progress.add(len(block))
    if distributed.is_main():
        _finish([t.sample for t in tasks], parts, session, config, layout)


def _score_block(
    session: Session,
    block: Sequence[Ready],
    answers: Sequence[Answer | None],
    config: StudyConfig,
) -> tuple[list[Row], dict[str, np.ndarray]]:
    """Rows and score arrays [n, L, N] of a block; failed images score zero with no rows."""
    decoder = session.model.decoder
    shape = (len(block), decoder.layers, decoder.heads)
    arrays: dict[str, np.ndarray] = {name: np.zeros(shape, np.float32) for name in SCORES}
    arrays["n_rows"] = np.zeros(len(block), np.int32)
    good = [i for i, answer in enumerate(answers) if answer is not None]
    if good:
        given = [a for a in answers if a is not None]
        values, counted = session.scores([block[i] for i in good], given, config.scoring)
        for name, value in values.items():
            arrays[name][good] = value
        arrays["n_rows"][good] = counted
    rows = [
        make_row(session.model, config.detection.benchmark, BASELINE, item, answer, config.hash())
        for item, answer in zip(block, answers, strict=True)
    ]
    return rows, arrays


def counts(rows: Sequence[Row], n_rows: np.ndarray, gate: str) -> np.ndarray:
    """bool [n]: samples that count towards the ranking."""
    gates = {
        "all": [True] * len(rows),
        "correct": [bool(r["correct"]) for r in rows],
        "parsed": [r["failure"] in PARSED for r in rows],
    }
    return np.array(gates[gate], bool) & (n_rows > 0)


def _finish(
    samples: Sequence[Sample],
    parts: Parts,
    session: Session,
    config: StudyConfig,
    layout: Layout,
) -> None:
    """Merge the pieces in the order of the samples; the ranking is written last."""
    model, benchmark = session.model.name, config.detection.benchmark
    by_id = {row["sample_id"]: row for row in parts.rows()}
    rows = [by_id[s.id] for s in samples]
    arrays = {
        name: np.stack([entries[s.id] for s in samples]) for name, entries in parts.arrays().items()
    }
    counted = counts(rows, arrays["n_rows"], config.scoring.gate)
    _write_scores(rows, arrays, counted, config, layout, model)
    write_rows(layout.detection_rows(model, benchmark), rows)
    failure = next((row["error"] for row in rows if row["error"]), "")
    means = mean_scores(arrays[config.scoring.method], counted, failure)
    ranking = rank(means)
    decoder = session.model.decoder
    shape = (decoder.layers, decoder.heads)
    controls = controls_for(config, model, ranking, shape)
    write_json(
        layout.heads(model, benchmark),
        {
            "model": model,
            "benchmark": benchmark,
            "method": config.scoring.method,
            "layers": shape[0],
            "heads": shape[1],
            "samples": len(rows),
            "counted": int(counted.sum()),
            "correct": sum(bool(r["correct"]) for r in rows),
            "ranking": [[layer, head, float(means[layer, head])] for layer, head in ranking],
            "controls": {
                str(k): [
                    {
                        "kind": c.kind,
                        "pool": c.pool,
                        "shortfall": c.shortfall,
                        "sets": [sorted(map(list, s)) for s in c.sets],
                    }
                    for c in kinds
                ]
                for k, kinds in controls.items()
            },
        },
    )
    parts.clear()


def _write_scores(
    rows: Sequence[Row],
    arrays: dict[str, np.ndarray],
    counted: np.ndarray,
    config: StudyConfig,
    layout: Layout,
    model: str,
) -> None:
    import xarray as xr

    dims = ("sample", "layer", "head")
    variables: dict[str, Any] = {name: (dims, arrays[name]) for name in SCORES}
    variables["n_rows"] = ("sample", arrays["n_rows"])
    variables["correct"] = ("sample", np.array([r["correct"] for r in rows], bool))
    variables["counted"] = ("sample", counted)
    variables["failure"] = ("sample", np.array([r["failure"] for r in rows], object))
    benchmark = config.detection.benchmark
    data = xr.Dataset(
        variables,
        coords={"sample": np.array([r["sample_id"] for r in rows], object)},
        attrs={
            "model": model,
            "benchmark": benchmark,
            "settings": config.hash(),
            **{f"scoring_{k}": v for k, v in config.scoring.model_dump().items()},
        },
    )
    with whole_file(layout.scores(model, benchmark)) as temporary:
        data.to_netcdf(temporary, engine="h5netcdf")


def read_heads(layout: Layout, model: str, benchmark: str) -> dict[str, Any]:
    """What ``detect`` wrote, as plain JSON values."""
    raw: dict[str, Any] = json.loads(layout.heads(model, benchmark).read_text())
    return raw


def ranking_of(raw: dict[str, Any]) -> list[Head]:
    """The ranking in a record of ``read_heads``."""
    return [(int(layer), int(head)) for layer, head, _ in raw["ranking"]]


def controls_of(raw: dict[str, Any]) -> dict[int, list[Control]]:
    """The control sets in a record of ``read_heads``, per k."""

    def control(value: dict[str, Any]) -> Control:
        sets = tuple(frozenset((int(x), int(h)) for x, h in heads) for heads in value["sets"])
        return Control(value["kind"], sets, value["pool"], value["shortfall"])

    return {int(k): [control(c) for c in kinds] for k, kinds in raw["controls"].items()}
