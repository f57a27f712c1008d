"""Blocks, padding, and files that are whole or absent."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_ports.errors import UserError
from vrh_jax.data.prompts import TaskPrompt
from vrh_jax.data.sample import Sample
from vrh_jax.engine.batching import Task, blocks, prefetch, rounded
from vrh_jax.engine.runner import Progress, duration
from vrh_jax.engine.store import Parts, only_run, whole_file, write_json


def task(i: int, size: int, limit: int) -> Task:
    sample = Sample(f"s{i}", "text", "x" * (i % 7), None, (size, size), None, "a", "i", "i")
    return Task(sample, TaskPrompt("{text}", image_first=True, max_new=limit))


@given(
    st.lists(st.tuples(st.integers(1, 50), st.sampled_from([4, 8])), max_size=40),
    st.integers(1, 9),
)
def test_blocks_hold_every_sample_once(kinds, size):
    tasks = [task(i, side, limit) for i, (side, limit) in enumerate(kinds)]
    found = blocks(tasks, size)
    assert sorted(t.sample.id for b in found for t in b) == sorted(t.sample.id for t in tasks)
    assert all(0 < len(b) <= size for b in found)
    assert all(len({t.prompt.max_new for t in b}) == 1 for b in found)
    shuffled = [tasks[i] for i in np.random.default_rng(0).permutation(len(tasks))]
    assert blocks(shuffled, size) == found


@given(st.integers(0, 5000))
def test_rounded_sizes_are_few_and_close(size):
    assert size <= rounded(size) <= size * 1.125 + 1
    assert rounded(rounded(size)) == rounded(size)


def test_sizes_per_doubling():
    assert len({rounded(n) for n in range(1025, 2049)}) == 8


def test_prefetch_keeps_order_and_tells_errors():
    for workers in (0, 1, 3):
        assert list(prefetch(range(20), lambda i: i * i, workers)) == [i * i for i in range(20)]

    def fail(i):
        if i == 3:
            raise UserError("three")
        return i

    with pytest.raises(UserError, match="three"):
        list(prefetch(range(6), fail, 2))


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"x": 1})

    def attempt():
        with whole_file(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        attempt()
    assert json.loads(path.read_text()) == {"x": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_parts(tmp_path):
    parts = Parts(tmp_path / "p")
    assert parts.rows() == []
    rows = [{"mask": "none", "sample_id": f"s{i}", "v": 0.1 * i} for i in range(3)]
    parts.add(rows[:1])
    parts.add(rows)  # s0 again, as after a change of batch size
    parts.add([{"mask": "vrh", "sample_id": "s0", "v": 1.0}], {"a": np.ones((1, 2, 2))})
    assert len(parts.rows()) == 4
    assert parts.rows()[1] == rows[1]
    np.testing.assert_array_equal(parts.arrays()["a"]["s0"], np.ones((2, 2)))
    (tmp_path / "p" / ".9.tmp.000009.jsonl").write_text("{half")
    assert len(parts.rows()) == 4
    parts.clear()
    assert parts.rows() == []


def test_two_runs_in_one_folder(tmp_path):
    with only_run(tmp_path), pytest.raises(UserError, match="another run"), only_run(tmp_path):
        pass
    with only_run(tmp_path):
        (tmp_path / "study.json").write_text("{}")
    assert (tmp_path / "study.json").exists()


def test_a_run_that_could_not_start_leaves_no_folder(tmp_path):
    out = tmp_path / "results" / "study"
    with pytest.raises(UserError), only_run(out):
        raise UserError("a model is missing")
    assert not out.exists()


def test_progress_tells_what_is_left(capsys):
    progress = Progress("m: b", 10, 4, every=0.0)
    progress.add(3)
    progress.add(3)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("m: b: 7/10, ")
    assert lines[0].endswith("left")
    assert "10/10" in lines[1]
    assert "done in" in lines[1]
    assert duration(3725) == "1:02:05"
    assert duration(65) == "1:05"
