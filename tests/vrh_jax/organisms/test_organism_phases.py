"""Training phases: exact resume, early stop, clear failure."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest

from model_ports.errors import UserError
from vrh_jax.organisms import phases
from vrh_jax.organisms.backbone import backbone_phase
from vrh_jax.organisms.config import Backbone, DecoderShape, Stage
from vrh_jax.organisms.phases import Phase, run_phase

SHAPE = DecoderShape(layers=2, heads=2, kv_heads=1, head_dim=4, mlp_dim=8)


def tiny_phase(**changes: float) -> Phase:
    stages = (
        Stage(
            name="easy",
            steps=3,
            counts=(2, 3),
            simple=True,
            short=True,
            scenes=2,
            per_scene=2,
            length=24,
            dropout=0.2,
            **changes,
        ),
        Stage(
            name="full", steps=3, scenes=2, per_scene=2, length=68, cells=True, mass=1.0, noise=0.1
        ),
    )
    return backbone_phase("backbone", SHAPE, Backbone(seed=3, stages=stages))


def train(phase: Phase, out: Path, stop_after: int | None = None) -> dict[str, object]:
    return run_phase(
        phase,
        out,
        seed=5,
        muon_lr=0.02,
        adam_lr=2e-3,
        save_every=100,
        show=lambda _: None,
        stop_after=stop_after,
    )


def leaves(tree: object) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    """A training without interruption: its folder and its weights."""
    out = tmp_path_factory.mktemp("whole")
    return out, train(tiny_phase(), out)


@pytest.mark.parametrize("stop", [2, 3, 4])
def test_resume_gives_identical_weights(
    whole: tuple[Path, dict[str, object]], tmp_path: Path, stop: int
) -> None:
    expected = leaves(whole[1])
    half = train(tiny_phase(), tmp_path, stop_after=stop)
    assert any(not np.array_equal(a, b) for a, b in zip(expected, leaves(half), strict=True))
    resumed = train(tiny_phase(), tmp_path)
    for a, b in zip(expected, leaves(resumed), strict=True):
        np.testing.assert_array_equal(a, b)


def test_finished_phase_returns_its_weights_without_training(
    whole: tuple[Path, dict[str, object]],
) -> None:
    def refuse(stage: Stage, number: int) -> dict[str, np.ndarray]:
        raise AssertionError("a finished phase must not draw batches")

    again = train(dataclasses.replace(tiny_phase(), batch=refuse), whole[0])
    for a, b in zip(leaves(whole[1]), leaves(again), strict=True):
        np.testing.assert_array_equal(a, b)


def test_divergence_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"backbone.*easy.*learning rate"):
        train(tiny_phase(lr=1e30), tmp_path)


def test_a_stage_that_ends_early_ends_early_when_resumed_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phases, "PATIENCE", 2)
    phase = tiny_phase(until=-1.0)  # reached at once, so after two of the three steps
    whole = train(phase, tmp_path / "whole")
    train(phase, tmp_path / "half", stop_after=2)
    resumed = train(phase, tmp_path / "half")
    for a, b in zip(leaves(whole), leaves(resumed), strict=True):
        np.testing.assert_array_equal(a, b)
    ends = [
        sorted(int(p.name) for p in (tmp_path / n).glob("checkpoints/backbone/*"))
        for n in ("whole", "half")
    ]
    assert ends[0][-1] == ends[1][-1] == 5
