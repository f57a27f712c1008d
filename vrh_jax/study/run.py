"""The whole study, stage by stage; what is finished is never done again."""

import contextlib
import dataclasses
import shutil
import sys
import time
from pathlib import Path
from typing import Any, Literal

from model_ports.errors import UserError
from vrh_jax.config import StudyConfig
from vrh_jax.engine import distributed
from vrh_jax.engine.runner import Stop
from vrh_jax.engine.store import only_run
from vrh_jax.study.detection import controls_of, detect, ranking_of, read_heads
from vrh_jax.study.evaluation import evaluate
from vrh_jax.study.layout import Layout
from vrh_jax.study.masks import masks_for
from vrh_jax.study.models import Checkpoints, Models, Source
from vrh_jax.study.plan import Plan, make_plan
from vrh_jax.study.state import State, open_state
from vrh_jax.study.summary import read_summary, write_results

Stage = Literal["score", "evaluate", "report"]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a run did.

    Attributes:
        out: folder of the results.
        worked: False if everything was there already.
        summary: contents of summary.json, or None if the study is not finished yet.
    """

    out: Path
    worked: bool
    summary: dict[str, Any] | None


def run_study(
    config: StudyConfig, *, until: Stage = "report", source: Source | None = None
) -> Outcome:
    """Run a study up to a stage, continuing where an earlier run stopped.

    Args:
        until: ``score`` (answers and head scores on the detection samples), ``evaluate``
            (masked answers as well) or ``report`` (all of it, with numbers and figures).
        source: where models come from; default: checkpoints.

    Raises:
        UserError: bad settings, models or data; before any work is done.
        Interrupted: SIGTERM or Ctrl-C; everything that was done is saved.
    """
    if until != "score" and not config.evaluation:
        raise UserError(
            "evaluation is empty, so there is nothing to mask; add a benchmark, or use `vrh score`"
        )
    source = source or Checkpoints()
    layout = Layout(config.folder)
    mesh = distributed.study_mesh(config.mesh)
    main = distributed.is_main()
    with only_run(layout.out) if main else contextlib.nullcontext():
        state = open_state(config, layout)
        if distributed.agree(layout.finished):
            return Outcome(layout.out, False, read_summary(layout) if main else None)
        plan = make_plan(config, source)
        distributed.check_same(plan.listing(), "samples")
        state.settle_prompts(plan.wordings(), layout.out)
        if main:
            _clean(layout.out)
            state.save(layout)
        models = Models(config, mesh, state.fingerprints, source)
        worked = _work(plan, layout, state, models, until)
    finished = read_summary(layout) if main and layout.finished else None
    return Outcome(layout.out, worked, finished)


def _clean(out: Path) -> None:
    """Remove temporary files of a killed run; they are never read."""
    for file in out.rglob(".*.tmp.*"):
        file.unlink(missing_ok=True)


def _work(plan: Plan, layout: Layout, state: State, models: Models, until: Stage) -> bool:
    """Returns whether there was anything to do."""
    start = time.monotonic()
    worked = False
    try:
        with Stop() as stop:
            worked |= _score(plan, layout, models, stop)
            if until != "score":
                worked |= _evaluate(plan, layout, models, stop)
    finally:
        state.wall_s += time.monotonic() - start
        if distributed.is_main():
            state.save(layout)
    if until == "report" and distributed.is_main():
        shutil.rmtree(layout.out / "parts", ignore_errors=True)
        say("writing numbers, figures and report")
        from vrh_jax.study.gallery import recorder  # matplotlib is imported only now

        write_results(layout, plan.evaluation, recorder(plan, models, layout))
        worked = True
    return worked


def _score(plan: Plan, layout: Layout, models: Models, stop: Stop) -> bool:
    benchmark = plan.config.detection.benchmark
    todo = [m.name for m in plan.config.models if not layout.heads(m.name, benchmark).exists()]
    todo = distributed.agree(todo)
    for name in todo:
        stop.check(distributed.any_process)
        tasks = plan.tasks(name, benchmark, plan.detection)
        detect(models.session(name), tasks, plan.config, layout, stop)
    return bool(todo)


def _evaluate(plan: Plan, layout: Layout, models: Models, stop: Stop) -> bool:
    config = plan.config
    detected = config.detection.benchmark
    # Process 0 writes these files and so is the one that can read them at this moment.
    heads = {
        m.name: distributed.agree(
            read_heads(layout, m.name, detected) if distributed.is_main() else None
        )
        for m in config.models
    }
    rankings = {name: ranking_of(raw) for name, raw in heads.items()}
    worked = False
    for model in config.models:
        controls = controls_of(heads[model.name])
        for entry in config.evaluation:
            masks = masks_for(config, entry, model.name, rankings, controls)
            files = [layout.rows(model.name, entry.benchmark, m.name) for m in masks]
            if distributed.agree(all(f.exists() for f in files)):
                continue
            worked = True
            stop.check(distributed.any_process)
            samples = plan.evaluation[entry.benchmark]
            tasks = plan.tasks(model.name, entry.benchmark, samples)
            session = models.session(model.name)
            evaluate(session, entry.benchmark, tasks, masks, layout, config.hash(), stop)
    return worked


def say(text: str) -> None:
    """A line to the user, from the first process only."""
    if distributed.is_main():
        print(text, file=sys.stderr, flush=True)
