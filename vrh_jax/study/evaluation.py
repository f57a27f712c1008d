"""Masked evaluation: the model answers a benchmark under every head mask."""

import sys
import time
from collections.abc import Sequence
from functools import partial

from vrh_jax.engine import distributed
from vrh_jax.engine.batching import Ready, Task, blocks, prefetch
from vrh_jax.engine.runner import Progress, Stop
from vrh_jax.engine.session import Answer, Session
from vrh_jax.engine.store import Parts, Row
from vrh_jax.heads.masks import head_mask
from vrh_jax.study.detection import agreed, prepare_all
from vrh_jax.study.layout import Layout
from vrh_jax.study.masks import MaskSpec
from vrh_jax.study.rows import make_row, write_rows

# Answers are written to disk at least this often (seconds), so that a kill loses little.
SAVE_EVERY = 5.0


def evaluate(
    session: Session,
    benchmark: str,
    tasks: Sequence[Task],
    masks: Sequence[MaskSpec],
    layout: Layout,
    settings: str,
    stop: Stop,
) -> None:
    """Write the result rows of every mask; finished work is kept and skipped.

    A block of samples is read and embedded once and then answered under all its masks, which
    are arguments of one compiled program.
    """
    name = session.model.name
    main = distributed.is_main()
    files = {m.name: layout.rows(name, benchmark, m.name) for m in masks}
    finished = set(distributed.agree([m for m, file in files.items() if file.exists()]))
    wanted = [m for m in masks if m.name not in finished]
    if not wanted:
        return
    parts = Parts(layout.parts("evaluation", name, benchmark))
    names = {m.name for m in wanted}
    listed = [[r["mask"], r["sample_id"]] for r in parts.rows() if r["mask"] in names]
    done = {(mask, sample) for mask, sample in distributed.agree(listed)}
    progress = Progress(
        f"{name}: {benchmark}, {len(wanted)} head sets",
        len(tasks) * len(wanted),
        len(done),
        stream=sys.stderr if main else None,
    )

    def missing(block: Sequence[Task]) -> list[MaskSpec]:
        ids = [t.sample.id for t in block]
        return [m for m in wanted if any((m.name, i) not in done for i in ids)]

    pending = [b for b in blocks(tasks, session.batch.generate) if missing(b)]
    for prepared in prefetch(pending, partial(prepare_all, session), session.batch.workers):
        block = agreed(prepared)
        todo = missing([r.task for r in block])
        _answer_masks(session, benchmark, block, todo, parts, settings, stop, progress)
    if main:
        _merge([t.sample.id for t in tasks], wanted, parts, layout, name, benchmark)


def _answer_masks(
    session: Session,
    benchmark: str,
    block: Sequence[Ready],
    masks: Sequence[MaskSpec],
    parts: Parts,
    settings: str,
    stop: Stop,
    progress: Progress,
) -> None:
    """Answer one block under each mask, saving as time passes."""
    model, main = session.model, distributed.is_main()
    usable = [r for r in block if r.prompt is not None]
    embedded = session.embed([r.prompt for r in usable if r.prompt is not None]) if usable else None

    def answers(mask: MaskSpec) -> dict[str, Answer]:
        if embedded is None:
            return {}
        array = head_mask(mask.removed, model.decoder.layers, model.decoder.heads)
        found = session.answer(embedded, len(usable), usable[0].task.prompt.max_new, array)
        return {r.sample.id: a for r, a in zip(usable, found, strict=True)}

    rows: list[Row] = []
    saved = time.monotonic()
    try:
        pairs = zip(masks, prefetch(masks, answers, session.threads), strict=True)
        for mask, found in pairs:
            stop.check(distributed.any_process)
            rows += [
                make_row(model, benchmark, mask, r, found.get(r.sample.id), settings) for r in block
            ]
            progress.add(len(block))
            if main and time.monotonic() - saved > SAVE_EVERY:
                parts.add(rows)
                rows, saved = [], time.monotonic()
    finally:
        if main and rows:
            parts.add(rows)


def _merge(
    order: Sequence[str],
    masks: Sequence[MaskSpec],
    parts: Parts,
    layout: Layout,
    model: str,
    benchmark: str,
) -> None:
    """One Parquet file per mask, rows in the order of the samples; then drop the pieces."""
    found = {(r["mask"], r["sample_id"]): r for r in parts.rows()}
    for mask in masks:
        rows = [found[mask.name, sample] for sample in order]
        write_rows(layout.rows(model, benchmark, mask.name), rows)
    parts.clear()
