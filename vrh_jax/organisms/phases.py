"""The training loop of every phase: deterministic batches, Orbax checkpoints, exact resume."""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp

from model_ports.errors import UserError
from vrh_jax.organisms.config import Stage
from vrh_jax.organisms.losses import Knobs

Arrays = Mapping[str, Any]
RUNNING = 0.95  # decay of the running means that are shown and that end a stage
PATIENCE = 60  # steps before ``until`` may end a stage
SHOW_EVERY = 20


@dataclasses.dataclass(frozen=True)
class Phase:
    """One phase of training.

    Attributes:
        name: folder of its checkpoints.
        init: initial parameters.
        loss: (params, batch, knobs, key) -> (loss, metrics); jitted once per batch shape.
        stages: run one after the other.
        batch: (stage, step number of the phase) -> arrays; a pure function.
        track: (batch, metrics as numpy) -> numbers to show; ``box`` ends stages.
        muon: parameter groups whose stacked matrices are trained with Muon.
    """

    name: str
    init: Callable[[], Any]
    loss: Callable[[Any, Arrays, Knobs, jax.Array], tuple[jax.Array, dict[str, jax.Array]]]
    stages: Sequence[Stage]
    batch: Callable[[Stage, int], Arrays]
    track: Callable[[Arrays, dict[str, Any]], dict[str, float]]
    muon: tuple[tuple[str, str], ...] = (("decoder", "layers"),)


def optimizer(phase: Phase, muon_lr: float, adam_lr: float) -> optax.GradientTransformation:
    """Muon on the stacked matrices of the phase's Muon groups, Adam on everything else."""

    def numbers(params: Any) -> Any:
        return jax.tree_util.tree_map_with_path(functools.partial(_muon_axes, phase.muon), params)

    return optax.contrib.muon(
        muon_lr, adam_learning_rate=adam_lr, muon_weight_dimension_numbers=numbers
    )


def _muon_axes(
    groups: tuple[tuple[str, str], ...], path: tuple[Any, ...], _: Any
) -> optax.contrib.MuonDimensionNumbers | None:
    names = [str(getattr(key, "key", "")) for key in path]
    if tuple(names[:2]) not in groups or names[-1] != "kernel":
        return None
    axes: dict[str, tuple[Any, Any]] = {"q": (1, (2, 3)), "o": ((1, 2), 3)}
    axes |= {"k": axes["q"], "v": axes["q"]}
    return optax.contrib.MuonDimensionNumbers(*axes.get(names[-2], (1, 2)))


@dataclasses.dataclass
class _Progress:
    """Where a phase stands; stored beside the arrays."""

    stage: int = 0
    step: int = 0
    total: int = 0
    running: dict[str, float] = dataclasses.field(default_factory=dict)


def run_phase(
    phase: Phase,
    out: Path,
    *,
    seed: int,
    muon_lr: float,
    adam_lr: float,
    save_every: int,
    show: Callable[[str], None],
    stop_after: int | None = None,
) -> Any:
    """Train a phase, or continue it from its last checkpoint.

    Args:
        out: output folder; checkpoints go to ``out/checkpoints/<name>``.
        stop_after: stop with a checkpoint after this many steps of the phase (for tests of
            resuming); None runs to the end.

    Returns:
        The parameters. A resumed run ends with the same ones as an uninterrupted run.
    """
    folder = (out / "checkpoints" / phase.name).absolute()
    options = ocp.CheckpointManagerOptions(max_to_keep=2)
    tx = optimizer(phase, muon_lr, adam_lr)
    with ocp.CheckpointManager(folder, options=options) as manager:
        state, progress = _restore(phase, manager, tx)
        step_fn = _make_step(phase, tx, seed)
        while progress.stage < len(phase.stages):
            stage = phase.stages[progress.stage]
            state = _run_stage(
                phase, stage, state, progress, step_fn, manager, save_every, show, stop_after
            )
            if stop_after is not None and progress.total >= stop_after:
                break
            progress.stage, progress.step, progress.running = progress.stage + 1, 0, {}
            _save(manager, state, progress)
    return state["params"]


def _run_stage(
    phase: Phase,
    stage: Stage,
    state: dict[str, Any],
    progress: _Progress,
    step_fn: Callable[..., Any],
    manager: ocp.CheckpointManager,
    save_every: int,
    show: Callable[[str], None],
    stop_after: int | None,
) -> dict[str, Any]:
    knobs = Knobs(stage.mass, stage.sparse, stage.wrapper, stage.dropout, stage.noise)
    started, first = time.monotonic(), progress.step
    while progress.step < stage.steps and not _reached(stage, progress):
        batch = phase.batch(stage, progress.total)
        done = progress.step / stage.steps
        decay = stage.lr * (1 + (stage.lr_end - 1) * done)
        rate = {"decoder": decay * stage.decoder_lr, "tower": decay * stage.tower_lr}
        state, loss, metrics = step_fn(state, batch, knobs, progress.total, rate)
        if not np.isfinite(float(loss)):
            raise UserError(
                f"phase {phase.name}, stage {stage.name}: the loss is {float(loss)} at step "
                f"{progress.step}; lower the learning rate"
            )
        numbers = {"loss": float(loss)} | phase.track(batch, jax.device_get(metrics))
        for name, value in numbers.items():
            old = progress.running.get(name, value)
            progress.running[name] = RUNNING * old + (1 - RUNNING) * value
        progress.step += 1
        progress.total += 1
        if progress.step % SHOW_EVERY == 0:
            pace = (time.monotonic() - started) / (progress.step - first)
            shown = " ".join(f"{k} {v:.3f}" for k, v in progress.running.items())
            show(f"{phase.name}/{stage.name} {progress.step}/{stage.steps} {shown} {pace:.2f} s")
        if progress.total % save_every == 0 or progress.total == stop_after:
            _save(manager, state, progress)
        if stop_after is not None and progress.total >= stop_after:
            break
    return state


def _reached(stage: Stage, progress: _Progress) -> bool:
    """Whether ``until`` ends the stage; asked before each step, so a resumed run agrees."""
    return progress.step >= PATIENCE and progress.running.get("box", 0.0) > stage.until


def _make_step(phase: Phase, tx: optax.GradientTransformation, seed: int) -> Callable[..., Any]:
    @functools.partial(jax.jit, donate_argnums=(0,))
    def step(state: Any, batch: Any, knobs: Knobs, number: Any, rate: Any) -> Any:
        key = jax.random.fold_in(jax.random.key(seed), number)
        grad = jax.value_and_grad(phase.loss, has_aux=True)
        (loss, metrics), grads = grad(state["params"], batch, knobs, key)
        updates, opt = tx.update(grads, state["opt"], state["params"])
        scaled = {
            group: jax.tree.map(functools.partial(jax.numpy.multiply, rate[_side(group)]), tree)
            for group, tree in updates.items()
        }
        params = optax.apply_updates(state["params"], scaled)
        return {"params": params, "opt": opt}, loss, metrics

    return step


def _side(group: str) -> str:
    return "decoder" if group in ("decoder", "bag") else "tower"


def _save(manager: ocp.CheckpointManager, state: Any, progress: _Progress) -> None:
    if manager.latest_step() == progress.total:
        manager.delete(progress.total)
    items = ocp.args.Composite(
        state=ocp.args.StandardSave(state), progress=ocp.args.JsonSave(vars(progress))
    )
    manager.save(progress.total, args=items)
    manager.wait_until_finished()


def _restore(
    phase: Phase, manager: ocp.CheckpointManager, tx: optax.GradientTransformation
) -> tuple[dict[str, Any], _Progress]:
    params = phase.init()
    state = {"params": params, "opt": tx.init(params)}
    latest = manager.latest_step()
    if latest is None:
        return state, _Progress()
    abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
    items = ocp.args.Composite(
        state=ocp.args.StandardRestore(abstract), progress=ocp.args.JsonRestore()
    )
    restored = manager.restore(latest, args=items)
    return restored["state"], _Progress(**restored["progress"])
