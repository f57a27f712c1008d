"""smoke.py on eight forced host devices, and its failures."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import jax
import pytest

from model_ports.errors import UserError

ROOT = Path(__file__).parents[2]
SMOKE = ROOT / "tpu_scripts" / "smoke.py"


def run(*arguments: str, devices: int) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    settings = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
    return subprocess.run(
        [sys.executable, str(SMOKE), *arguments],
        env=environment | settings | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


@pytest.mark.slow
@pytest.mark.multidevice
def test_all_steps_pass_on_eight_devices(tmp_path: Path) -> None:
    done = run("--tensor", "4", "--out", str(tmp_path / "a" / "b"), devices=8)
    assert done.returncode == 0, done.stderr
    steps = [line.split()[1] for line in done.stdout.splitlines()]
    assert steps == ["devices", "mesh", "sum", "scoring", "write", "done"]
    assert "data 2 x tensor 4" in done.stdout
    assert "8 devices add up to 28" in done.stdout
    written = json.loads((tmp_path / "a" / "b" / "smoke" / "process-000.json").read_text())
    assert written["devices"] == 8


@pytest.fixture(scope="module")
def smoke() -> ModuleType:
    spec = importlib.util.spec_from_file_location("smoke", SMOKE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_mesh_that_does_not_fit_fails(
    smoke: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert smoke.main(["--tensor", str(jax.device_count() + 1)]) == 1
    assert "smoke: mesh failed: --tensor" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_fails(smoke: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=r"cannot write .*file"):
        smoke.check_write(str(tmp_path / "file" / "out"))


def test_a_wrong_result_fails(smoke: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smoke, "TOLERANCE", -1.0)
    with pytest.raises(UserError, match="sharded and unsharded runs differ: logits"):
        smoke.check_scoring(smoke.choose_mesh(1))
