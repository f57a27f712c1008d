"""``vrh organism train`` as a whole, and what the shipped weights say about their training."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from model_ports.convert.load import load_model
from model_ports.errors import UserError
from vrh_jax import organisms
from vrh_jax.organisms import record
from vrh_jax.organisms.config import read_config
from vrh_jax.organisms.train import train

CONFIG = Path(__file__).parents[3] / "configs" / "organism_train.yaml"


def tiny() -> dict[str, Any]:
    """Every phase, a step or two each."""
    batch = {"scenes": 2, "per_scene": 2}
    vision = {"depth": 2, "dim": 16, "heads": 2, "mlp_dim": 16}
    prepare = {"tower_steps": 2, "align_steps": [1, 1], "scenes": 2}
    tune = [{"name": "images", "steps": 2, "length": 64, **batch}]
    model = {"backbone": "one", "vision": vision, "prepare": prepare, "tune": tune}
    return {
        "decoder": {"layers": 2, "heads": 2, "kv_heads": 1, "head_dim": 8, "mlp_dim": 16},
        "backbones": {"one": {"seed": 1, "stages": [{"name": "a", "steps": 2, **batch}]}},
        "models": {style: {"style": style, **model} for style in ("qwen", "intern")},
        "save_every": 1,
    }


def write(folder: Path, config: dict[str, Any]) -> Path:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.slow
def test_an_interrupted_training_ends_with_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, out = write(tmp_path, tiny()), tmp_path / "out"
    (folder,) = train(config, out, models=["qwen"], show=lambda _: None)
    made = json.loads((out / record.NAME).read_text())
    assert made["settings"] == read_config(config).model_dump(mode="json")
    assert load_model(folder).processor.resized((48, 48)) == (48, 48)
    # As a kill leaves it that comes after the first step of the last phase.
    shutil.rmtree(out / "checkpoints" / "qwen-tune" / "2")
    (folder / "model.safetensors").unlink()
    (out / record.NAME).unlink()
    # The shipped record as it would be if these were the weights that ship.
    (tmp_path / record.NAME).write_text(json.dumps(made))
    monkeypatch.setattr(record, "WEIGHTS", tmp_path)
    said: list[str] = []
    train(config, out, models=["qwen"], show=said.append)
    assert json.loads((out / record.NAME).read_text()) == made
    assert f"source: {folder}, prompts: organism" in said[-1]
    assert said[-1].endswith("bit for bit the weights that ship")


def test_other_settings_and_other_versions_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = record.shipped()
    assert record.compare(ours, "qwen") == "bit for bit the weights that ship"
    other = {**ours, "sha256": {"qwen": "0"}}
    assert "other settings" in record.compare({**other, "settings": {}}, "qwen")
    versions = {**ours["versions"], "jax": "0.0.1"}
    told = record.compare({**other, "versions": versions}, "qwen")
    assert told.endswith(f"made with jax {ours['versions']['jax']}")
    told = record.compare({**other, "threads": 3, "processor": "abacus"}, "qwen")
    assert told.endswith(f"made with threads 1, processor {ours['processor']}")
    assert "nothing that is known" in record.compare(other, "qwen")


def test_the_command_trains_with_one_thread() -> None:
    """Said before JAX's backend starts, and believed by it: no sum is split over threads."""
    code = (
        "import argparse, jax\n"
        "from jax._src import xla_bridge\n"
        "from vrh_jax.organisms import cli, record, train\n"
        "train.train = lambda *_, **__: []\n"
        "assert not xla_bridge.backends_are_initialized()\n"
        "cli.run_train(argparse.Namespace(config='c', out='o', models=[], json=True))\n"
        "assert not xla_bridge.backends_are_initialized()\n"
        "print(record._threads())\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split()[-1] == "1"


def test_the_shipped_weights_were_trained_with_the_shipped_configuration() -> None:
    ours = record.shipped()
    assert ours["settings"] == read_config(CONFIG).model_dump(mode="json")
    assert sorted(ours["sha256"]) == organisms.names()
    for name, expected in ours["sha256"].items():
        weights = organisms.WEIGHTS / name / "model.safetensors"
        assert hashlib.sha256(weights.read_bytes()).hexdigest() == expected


def test_a_run_of_another_configuration_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="another configuration"):
        train(write(tmp_path, tiny()), tmp_path)
    with pytest.raises(UserError, match=r"no model glm; it has .*qwen"):
        train(write(tmp_path, tiny()), tmp_path / "new", models=["glm"])


def test_a_misspelt_setting_is_named(tmp_path: Path) -> None:
    config = tiny()
    config["backbones"]["one"]["stages"][0]["step"] = 3
    with pytest.raises(UserError, match=r"stages\.0: unknown key 'step'; did you mean 'steps'"):
        read_config(write(tmp_path, config))
