"""Killed and interrupted studies continue; nothing is lost, repeated or different."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.copy_model import write_samples

TESTS = Path(__file__).parents[2]
DRAWS = 2


def start(folder: Path, out: str, *extra: str) -> subprocess.Popen[str]:
    raw = {
        "name": "killed",
        "out": str(folder / out),
        "models": [{"name": "a", "source": "copy"}],
        "benchmarks": {"n": {"task": "jsonl", "options": {"path": str(folder / "n.jsonl")}}},
        "detection": {"benchmark": "n", "samples": 6},
        "evaluation": [{"benchmark": "n", "samples": 9}],
        "ks": [1],
        "controls": {"draws": DRAWS},
        "max_new": {"needle": 3},
        "batch": {"generate": 4, "score": 4, "bucket": 32},
    }
    config = folder / f"{out}.json"
    config.write_text(json.dumps(raw))
    env = {
        **os.environ,
        "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}",
        "JAX_COMPILATION_CACHE_DIR": str(folder / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    command = [sys.executable, "-m", "support.study_worker", str(config), *extra]
    return subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def rows(folder: Path, out: str) -> dict[str, bytes]:
    base = folder / out
    return {str(p.relative_to(base)): p.read_bytes() for p in sorted(base.rglob("*.parquet"))}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("resume")
    write_samples(folder / "n.jsonl", 30, seed=3)
    process = start(folder, "whole")
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    assert json.loads(output) == {"worked": True}
    assert len(rows(folder, "whole")) == 1 + 2 + 2 * DRAWS
    return folder


# About 60 events: 3 + 18 answers, and what is written and renamed for them.
@pytest.mark.parametrize("seed", range(2))
def test_killed_at_random_moments(whole, seed):
    draw = random.Random(seed)
    out = f"killed-{seed}"
    kills = 0
    for moment in (draw.randint(1, 12), draw.randint(5, 40), draw.randint(2, 60)):
        process = start(whole, out, str(moment))
        _, errors = process.communicate(timeout=600)
        assert process.returncode in (0, -signal.SIGKILL), errors
        kills += process.returncode != 0
    process = start(whole, out)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    assert kills
    assert rows(whole, out) == rows(whole, "whole")
    for path in (whole / out / "rows").rglob("*.parquet"):
        ids = pq.read_table(path)["sample_id"].to_pylist()
        assert len(ids) == len(set(ids)) == 9
    assert not list((whole / out).rglob("*.tmp.*"))


def test_sigterm_ends_cleanly_and_is_continued(whole):
    process = start(whole, "stopped")
    folder = whole / "stopped" / "parts"
    deadline = time.monotonic() + 300
    while not folder.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=600)
    if process.returncode:
        assert "Interrupted" in errors
        assert "what is done is saved" in errors
    process = start(whole, "stopped")
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    assert rows(whole, "stopped") == rows(whole, "whole")
