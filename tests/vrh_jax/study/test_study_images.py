"""A study from the command line with tiny random checkpoints of both ports, on own images."""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from support.internvl import make_tiny
from support.parity import textured_image
from support.qwen25 import write_checkpoint

from vrh_jax.cli import main

SIZES = [(112, 84), (90, 140)]


def write_data(folder: Path) -> None:
    lines = []
    for i in range(8):
        size = SIZES[i % 2]
        textured_image(*size, seed=i).save(folder / f"{i}.png")
        shared = {"image": f"{i}.png", "image_id": f"i{i}"}
        box = [3 + i, 4, 60, 70]
        # Names of samples with unreadable images come first, so that the gallery takes one.
        lines.append(
            {
                **shared,
                "id": f"{'a' if i in (5, 6) else 'b'}{i}",
                "text": "the red square",
                "box": box,
            }
        )
        lines.append({**shared, "id": f"q{i}", "text": "What colour?", "answer": "red"})
    (folder / "own.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    # A header that can be read, and pixels that cannot.
    whole = (folder / "5.png").read_bytes()
    (folder / "5.png").write_bytes(whole[: len(whole) // 3])
    (folder / "6.png").unlink()


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    (folder / "qwen").mkdir()
    write_checkpoint(folder / "qwen", seed=1)
    make_tiny(folder / "intern", 2)
    write_data(folder)
    config = {
        "name": "images",
        "models": [
            {"name": "qwen", "source": str(folder / "qwen")},
            {"name": "intern", "source": str(folder / "intern"), "image_first": False},
        ],
        "benchmarks": {"own": {"task": "jsonl", "options": {"path": str(folder / "own.jsonl")}}},
        "detection": {"benchmark": "own", "samples": 4},
        "evaluation": [{"benchmark": "own", "samples": 8}],
        "ks": [2],
        "controls": {"draws": 1},
        "transfer": {"pairs": [{"models": ["qwen", "intern"]}], "permutations": 20},
        "max_new": {"grounding": 4, "text": 4},
        "split_seed": 1,
        "batch": {"generate": 4, "score": 4, "bucket": 64},
    }
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(config))
    status = main(["study", str(path), "--out", str(folder / "out")])
    return folder, path, status


def test_rows_of_both_models(ended):
    folder, _, status = ended
    assert status == 0
    for model in ("qwen", "intern"):
        tables = sorted((folder / "out" / "rows" / model / "own").glob("*.parquet"))
        assert len(tables) == 5
        for path in tables:
            rows = pq.read_table(path).to_pylist()
            assert len(rows) == 8
            for row in rows:
                broken = row["image_id"] in ("i5", "i6")
                assert (row["failure"] == "image_error") == broken
                assert bool(row["error"]) == broken
                assert (row["n_tokens"] > 0) != broken
                assert not row["correct"]
            assert {r["task"] for r in rows} == {"grounding", "text"}


def test_unreadable_images_stay_in_the_denominator(ended):
    folder, _, _ = ended
    summary = json.loads((folder / "out" / "summary.json").read_text())
    entries = [e for e in summary["accuracy"] if e["heads"] == "none"]
    assert [e["n"] for e in entries] == [8, 8]
    assert all(0 < e["image_errors"] < 8 for e in entries)
    assert (folder / "out" / "report.html").exists()
    shown = json.loads((folder / "out" / "gallery" / "index.json").read_text())
    assert any(e["before"]["failure"] == "image_error" and not e["image"] for e in shown)


def test_a_second_run_says_that_nothing_is_left(ended, capsys):
    folder, path, _ = ended
    assert main(["study", str(path), "--out", str(folder / "out")]) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert main(["study", str(path), "--out", str(folder / "out"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["worked"] is False
    assert found["summary"]["study"] == "images"


def test_plan_transfer_and_report(ended, capsys):
    folder, path, _ = ended
    out = ["--out", str(folder / "out")]
    assert main(["plan", str(path), *out, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["evaluation"][0]["head_sets"] == 5
    assert plan["answers"] == 2 * 4 + 2 * 5 * 8
    assert main(["transfer", str(path), *out, "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)["transfer"]
    assert {(e["source"], e["target"]) for e in entries} == {
        ("qwen", "intern"), ("intern", "qwen"),
    }  # fmt: skip
    (folder / "out" / "report.html").unlink()
    assert main(["report", str(folder / "out")]) == 0
    assert (folder / "out" / "report.html").exists()


def test_a_tokenizer_of_another_model_is_refused(ended, capsys):
    folder, path, _ = ended
    config = yaml.safe_load(path.read_text())
    swapped = folder / "swapped"
    swapped.mkdir()
    for file in (folder / "intern").iterdir():
        (swapped / file.name).write_bytes(file.read_bytes())
    tokenizer = json.loads((swapped / "tokenizer.json").read_text())
    for token in tokenizer["added_tokens"]:
        if token["content"] == "<IMG_CONTEXT>":
            token["content"] = "<another>"
    (swapped / "tokenizer.json").write_text(json.dumps(tokenizer))
    config["models"] = [{"name": "intern", "source": str(swapped)}]
    config["transfer"] = {}
    other = folder / "other.yaml"
    other.write_text(yaml.safe_dump(config))
    assert main(["study", str(other), "--out", str(folder / "other")]) == 2
    assert "IMG_CONTEXT" in capsys.readouterr().err
    assert not (folder / "other").exists()  # found before any work


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("preprocessor_config.json", "{", "preprocessor_config.json cannot be read as JSON"),
        ("generation_config.json", "[]", "generation_config.json is no JSON object"),
        ("chat_template.jinja", "{% if %}", "chat template"),
        ("chat_template.jinja", "{{ messages[0].role }}", "chat template"),
    ],
)
@pytest.mark.parametrize("model", ["qwen", "intern"])
def test_a_damaged_file_is_named_before_any_work(ended, capsys, model, name, text, words):
    folder, path, _ = ended
    damaged = folder / "damaged"
    shutil.copytree(folder / model, damaged)
    (damaged / name).write_text(text)
    config = yaml.safe_load(path.read_text())
    config["models"][1] |= {"source": str(damaged)}
    other = folder / "damaged.yaml"
    other.write_text(yaml.safe_dump(config))
    try:
        for command in ("plan", "study"):
            assert main([command, str(other), "--out", str(folder / "none")]) == 2
            printed = capsys.readouterr().err
            assert words in printed
            assert f"models.intern ({damaged}): " in printed
        assert not (folder / "none").exists()
    finally:
        shutil.rmtree(damaged)
