"""``vrh-convert`` and the commands that ``vrh`` mounts."""

import argparse
import json
import shutil
import subprocess
import sys

import pytest
from support.checkpoints import tiny_llama

from model_ports.convert import cli
from model_ports.convert.progress import Progress
from model_ports.errors import UserError
from vrh_jax.organisms import WEIGHTS


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture
def source(tmp_path):
    tiny_llama(tmp_path / "source", shards=2)
    return tmp_path / "source"


def vrh(*arguments):
    """As the ``vrh`` command dispatches."""
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(required=True)
    for add in (cli.add_convert, cli.add_verify, cli.add_export):
        add(commands)
    args = parser.parse_args([str(a) for a in arguments])
    return args.run(args)


def test_convert_verify_export_with_json(tmp_path, source, capsys):
    out, back = tmp_path / "out", tmp_path / "back"
    assert vrh("convert", source, out, "--json") == 0
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert result["source_tensors"] == 30
    assert result["resumed"] == 0
    assert "converting" in printed.err
    assert "12/12 parameters" in printed.err
    assert vrh("verify", out, "--no-logits", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["ok"]
    assert result["tensors"] == 30
    assert vrh("export", out, back, "--json", "--max-shard-size", "20KB") == 0
    result = json.loads(capsys.readouterr().out)
    assert len(result["files"]) > 1
    assert vrh("verify", out, "--source", back, "--no-logits", "--quiet") == 0
    printed = capsys.readouterr()
    assert "30 tensors compared with the source: all equal" in printed.out
    assert printed.err == ""


def test_verify_says_one_when_something_differs(tmp_path, source, capsys):
    vrh("convert", source, tmp_path / "out", "--quiet")
    (tmp_path / "out/tokenizer.json").unlink()
    assert vrh("verify", tmp_path / "out", "--no-logits") == 1
    assert "tokenizer.json is missing" in capsys.readouterr().out


def test_dry_run_writes_nothing(tmp_path, source, capsys):
    before = sorted(tmp_path.rglob("*"))
    assert cli.main([str(source), str(tmp_path / "out"), "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "decoder/layers/mlp/down/kernel [3, 48, 32] bfloat16 <- model.layers.{l}" in text
    assert cli.main([str(source), "--dry-run", "--json", "--dtype", "float32"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert len(plan["parameters"]) == 12
    assert {p["dtype"] for p in plan["parameters"]} == {"float32"}
    assert sorted(tmp_path.rglob("*")) == before
    (source / "tokenizer.json").unlink()
    (source / "tokenizer_config.json").unlink()
    assert cli.main([str(source), "--dry-run"]) == 0
    assert "no tokenizer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["SOURCE"], ["SOURCE OUT"]),
        (["SOURCE", "OUT", "--dtype", "int4"], ["int4", "bfloat16"]),
        (["SOURCE", "OUT", "--shards", "0"], ["shards = 0"]),
        (["SOURCE/nowhere", "OUT"], ["nowhere"]),
        (["SOURCE/config.json", "OUT"], ["is a file"]),
        (["SOURCE", "SOURCE/config.json/below"], ["Not a directory", "config.json/below"]),
        (["nobody/no-such-model", "OUT"], ["nobody/no-such-model", "HF_HUB_OFFLINE"]),
        (["OUT", "OUT2"], ["OUT"]),
    ],
)
def test_bad_input_is_one_message_and_status_two(tmp_path, source, capsys, arguments, words):
    real = {"SOURCE": str(source), "OUT": str(tmp_path / "OUT")}
    given = [a.replace("SOURCE", real["SOURCE"]).replace("OUT", real["OUT"]) for a in arguments]
    assert cli.main(given) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("vrh-convert: ")
    assert "Traceback" not in printed.err
    for word in words:
        assert word in printed.err
    assert not list(tmp_path.glob("OUT*"))


def test_converted_is_not_converted_again(tmp_path, source, capsys):
    assert cli.main([str(source), str(tmp_path / "out"), "--quiet"]) == 0
    assert cli.main([str(tmp_path / "out"), str(tmp_path / "again")]) == 2
    assert "already" in capsys.readouterr().err


def test_interrupt_leaves_a_way_to_continue(tmp_path, source, capsys, monkeypatch):
    with monkeypatch.context() as patch:

        def stop(*_):
            raise KeyboardInterrupt

        patch.setattr("model_ports.convert.save.write_target", stop)
        assert cli.main([str(source), str(tmp_path / "out")]) == 130
    assert "continues" in capsys.readouterr().err
    assert cli.main([str(source), str(tmp_path / "out")]) == 0


def test_help_imports_nothing_heavy(tmp_path):
    code = (
        "import sys\nfrom model_ports.convert import cli\n"
        "try: cli.main(['--help'])\nexcept SystemExit: pass\n"
        "print(sorted(m for m in ('jax', 'flax', 'numpy', 'tensorstore', 'orbax', 'transformers',"
        " 'torch') if m in sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip().endswith("[]")


def test_progress_on_a_terminal_and_in_a_log():
    class Screen:
        def __init__(self, live):
            self.live, self.text = live, ""

        def isatty(self):
            return self.live

        def write(self, text):
            self.text += text

        def flush(self):
            pass

    for live in (True, False):
        screen = Screen(live)
        progress = Progress("working", 4, 4000, stream=screen)
        progress.skip(1, 1000)
        progress.add(1, 1000)
        assert "2/4 tensors" in progress.line()
        assert "left" in progress.line()
        progress.add(2, 2000)
        progress.finish()
        assert "4/4 tensors" in screen.text
        assert ("\r" in screen.text) == live
        assert screen.text.endswith("\n")
    hidden = Screen(live=False)
    progress = Progress("working", 1, 1, stream=hidden, enabled=False)
    progress.finish()
    assert hidden.text == ""
    assert "unknown time" in Progress("working", 1, 1, stream=hidden).line()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_progress_ends_at_its_total(tmp_path, monkeypatch, dtype):
    """Also where one tensor fills several parameters, as the organism's fused projections do."""
    ends = []

    def finish(progress):
        ends.append(progress.what)
        assert progress.done_items == progress.items, progress.line()
        assert progress.done_bytes == progress.nbytes, progress.line()

    monkeypatch.setattr(Progress, "finish", finish)
    source, out = tmp_path / "source", tmp_path / "out"
    shutil.copytree(WEIGHTS / "qwen", source)
    vrh("convert", source, out, "--dtype", dtype)
    vrh("verify", out, "--no-logits")
    vrh("export", out, tmp_path / "back")
    source.rename(tmp_path / "away")
    vrh("verify", out)
    assert ends == ["checking source", "converting", "verifying", "exporting", "verifying"]


def test_pickles_end_with_advice(tmp_path, source, capsys):
    for path in source.glob("*.safetensors*"):
        path.unlink()
    (source / "pytorch_model.bin").write_bytes(b"\x80\x02")
    assert cli.main([str(source), str(tmp_path / "out")]) == 2
    text = capsys.readouterr().err
    assert "pytorch_model.bin" in text
    assert "save_pretrained" in text


def test_errors_are_user_errors_for_the_caller(tmp_path, source):
    shutil.rmtree(source)
    with pytest.raises(UserError):
        vrh("convert", source, tmp_path / "out")
