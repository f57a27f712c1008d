"""The command line: fast help, exit statuses, one JSON document."""

import json
import subprocess
import sys

import pytest

from vrh_jax.cli import build_parser, main

COMMANDS = (
    "study score evaluate transfer report convert verify export models data plan organism".split()
)


def test_commands_are_there(capsys):
    with pytest.raises(SystemExit) as stop:
        build_parser().parse_args(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert all(f"    {name} " in text for name in COMMANDS)


def test_help_imports_nothing_slow():
    code = (
        "import sys, vrh_jax.cli as c\n"
        "c.build_parser()\n"
        "print([m for m in ('jax', 'torch', 'transformers', 'matplotlib', 'numpy', 'pydantic') "
        "if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize("command", ["study", "score", "evaluate", "plan"])
def test_user_errors_have_status_2(command, tmp_path, capsys):
    path = tmp_path / "s.yaml"
    path.write_text("name: s\nmodel: x\n")
    assert main([command, str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("vrh: error: ")
    assert "did you mean 'models'?" in captured.err
    assert not captured.out


def test_transfer_needs_pairs(tmp_path, capsys):
    path = tmp_path / "s.yaml"
    path.write_text(
        "name: s\nmodels: [{name: m, source: x}]\nbenchmarks: {b: {task: jsonl}}\n"
        "detection: {benchmark: b, samples: 1}\n"
    )
    assert main(["transfer", str(path)]) == 2
    assert "transfer.pairs is empty" in capsys.readouterr().err


def test_report_needs_a_study(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "no study" in capsys.readouterr().err


def test_models_as_json(capsys):
    assert main(["models", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert (rows["qwen2.5-vl-7b"]["layers"], rows["qwen2.5-vl-7b"]["heads"]) == (28, 28)
    assert rows["internvl3-8b"]["same_backbone"] == ["qwen2.5-vl-7b"]


def test_a_reader_that_has_enough_ends_it_quietly():
    command = [sys.executable, "-m", "vrh_jax.cli", "models", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        run.stdout.close()
        run.stdout = None
        assert run.communicate(timeout=120)[1] == b""
    assert run.returncode == 141


def test_models_as_markdown(capsys):
    assert main(["models", "--markdown"]) == 0
    assert capsys.readouterr().out.startswith("| model | hub | backbone |")


def test_models_as_table(capsys):
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("model ")
    assert any(line.startswith("internvl3-8b ") and "28 x 28 (4)" in line for line in lines)
