"""run_study.sh against golden dry runs and a stand-in for gcloud that records its arguments."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "tpu_scripts"
GOLDEN = Path(__file__).parent / "golden"
CONFIG = "configs/organism.yaml"

COMMANDS = {
    "study": ["--name", "slice-1", "--zone", "us-west4-a", "--config", CONFIG],
    "all": [
        *("--name", "slice-1", "--zone", "us-west4-a", "--project", "my-project"),
        *("--config", CONFIG, "--out", "results/on tpu", "--setup", "--smoke"),
        *("--remote-dir", "work/vrh", "--remote-python", "python3.12", "--", "--json"),
    ],
}


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        ["bash", str(SCRIPTS / "run_study.sh"), *arguments],
        env=kept | {"TMPDIR": "/tmp", "VRH_TPU_ENV": os.devnull} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def environment_file(tmp_path: Path) -> Path:
    file = tmp_path / "env.sh"
    file.write_text("TPU_NAME=from-env\nZONE=zone-env\nCONFIG=configs/organism.yaml\n")
    return file


@pytest.mark.parametrize("name", COMMANDS)
def test_dry_run_prints_the_golden_commands(name: str, environment_file: Path) -> None:
    done = (
        run(*COMMANDS[name], "--dry-run") if name == "study" else run("--dry-run", *COMMANDS[name])
    )
    assert done.returncode == 0, done.stderr
    expected = (GOLDEN / f"{name}.txt").read_text()
    assert done.stdout.replace(str(ROOT), "<repository>") == expected


@pytest.fixture
def fake_gcloud(tmp_path: Path) -> dict[str, str]:
    """A gcloud that appends its arguments to a file, and answers with STATUS."""
    folder, log = tmp_path / "bin", tmp_path / "calls.jsonl"
    folder.mkdir()
    (folder / "gcloud").write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        f"open({str(log)!r}, 'a').write(json.dumps(sys.argv[1:]) + '\\n')\n"
        "sys.exit(int(os.environ.get('STATUS', '0')))\n"
    )
    (folder / "gcloud").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "LOG": str(log)}


def calls(fake: dict[str, str]) -> list[list[str]]:
    log = Path(fake["LOG"])
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def test_dry_run_calls_nothing(fake_gcloud: dict[str, str]) -> None:
    assert run(*COMMANDS["study"], "--smoke", "--dry-run", **fake_gcloud).returncode == 0
    assert calls(fake_gcloud) == []


def test_arguments_survive_two_shells(fake_gcloud: dict[str, str], tmp_path: Path) -> None:
    """The remote shell sees exactly the words that the user typed."""
    out, extra = "my results/it's $HOME", 'a "b" *'
    done = run(*COMMANDS["study"], "--out", out, "--", extra, **fake_gcloud)
    assert done.returncode == 0, done.stderr
    (call,) = calls(fake_gcloud)
    assert call[:5] == ["compute", "tpus", "tpu-vm", "ssh", "slice-1"]
    assert {"--zone=us-west4-a", "--worker=all"} <= set(call)
    remote = next(word for word in call if word.startswith("--command=")).removeprefix("--command=")

    home = tmp_path / "home"
    (home / "vrh-jax" / ".venv" / "bin").mkdir(parents=True)
    (home / "vrh-jax" / ".venv" / "bin" / "activate").write_text(
        f"vrh() {{ {sys.executable} -c "
        "'import json, sys; print(json.dumps(sys.argv[1:]))' \"$@\"; }\n"
    )
    seen = subprocess.run(
        ["bash", "-c", remote], cwd=home, capture_output=True, text=True, check=True
    )
    assert json.loads(seen.stdout) == ["study", CONFIG, "--distributed", "--out", out, extra]


def test_exit_status_is_that_of_the_study(fake_gcloud: dict[str, str]) -> None:
    assert run(*COMMANDS["study"], **fake_gcloud, STATUS="42").returncode == 42


def test_a_failed_smoke_test_stops(fake_gcloud: dict[str, str]) -> None:
    done = run(*COMMANDS["study"], "--smoke", **fake_gcloud, STATUS="1")
    assert done.returncode == 1
    (call,) = calls(fake_gcloud)
    assert "smoke.py" in call[-1]


def test_flags_win_over_the_environment_file(environment_file: Path) -> None:
    done = run("--dry-run", VRH_TPU_ENV=str(environment_file))
    assert "ssh from-env --zone=zone-env" in done.stdout
    done = run("--dry-run", "--name", "typed", VRH_TPU_ENV=str(environment_file))
    assert "ssh typed --zone=zone-env" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--name is missing"),
        (["--name", "a"], "--zone is missing"),
        (["--name", "a", "--zone", "z"], "--config is missing"),
        (["--name"], "--name needs a value"),
        (["--nmae", "a"], "unknown argument --nmae"),
        (["--name", "a", "--zone", "z", "--config", "configs/none.yaml"], "no config configs/none"),
    ],
)
def test_bad_arguments(arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stdout == ""


def test_a_named_environment_file_must_exist() -> None:
    done = run(*COMMANDS["study"], VRH_TPU_ENV="/nowhere/env.sh")
    assert done.returncode == 2
    assert "/nowhere/env.sh, which is not there" in done.stderr


def test_help_names_every_variable_of_the_example() -> None:
    help_text = run("--help").stdout
    lines = (SCRIPTS / "env.sh.example").read_text().splitlines()
    names = [line.split("=")[0] for line in lines if line and not line.startswith("#")]
    assert len(names) == 7
    assert not [name for name in names if f"({name})" not in help_text]


def test_shellcheck() -> None:
    program = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert program, "shellcheck is missing: pip install -e '.[test]' brings it"
    files = [*SCRIPTS.rglob("*.sh"), SCRIPTS / "env.sh.example", ROOT / ".ci" / "run"]
    done = subprocess.run(
        [program, *map(str, files)], capture_output=True, text=True, check=False, cwd=SCRIPTS
    )
    assert done.returncode == 0, done.stdout
