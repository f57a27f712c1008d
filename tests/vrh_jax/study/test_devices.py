"""A study on eight devices gives what it gives on one."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import xarray as xr
from support.copy_model import write_samples

TESTS = Path(__file__).parents[2]


def start(folder: Path, out: str, mesh: dict[str, int], *extra: int) -> subprocess.Popen[str]:
    raw = {
        "name": "devices",
        "out": str(folder / out),
        "models": [{"name": "a", "source": "copy"}],
        "benchmarks": {"n": {"task": "jsonl", "options": {"path": str(folder / "n.jsonl")}}},
        "detection": {"benchmark": "n", "samples": 6},
        "evaluation": [{"benchmark": "n", "samples": 9}],
        "ks": [1],
        "controls": {"draws": 1},
        "max_new": {"needle": 3},
        "batch": {"generate": 4, "score": 4, "bucket": 32},
        "mesh": mesh,
    }
    config = folder / f"{out}.json"
    config.write_text(json.dumps(raw))
    flags = [f for f in os.environ.get("XLA_FLAGS", "").split() if "device_count" not in f]
    env = {
        **os.environ,
        "XLA_FLAGS": " ".join(flags),
        "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}",
    }
    command = [sys.executable, "-m", "support.study_worker", str(config), *map(str, extra)]
    return subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        _, errors = process.communicate(timeout=800)
        assert process.returncode == 0, errors


def same_rows(first: Path, second: Path) -> None:
    files = sorted(first.rglob("*.parquet"))
    assert len(files) == 1 + 4
    for path in files:
        other = second / path.relative_to(first)
        assert pq.read_table(path).equals(pq.read_table(other)), path


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    folder = tmp_path_factory.mktemp("devices")
    write_samples(folder / "n.jsonl", 30, seed=3)
    finish(start(folder, "one", {}))
    return folder


@pytest.mark.multidevice
def test_eight_devices_equal_one(one):
    # Eight virtual CPU devices are made because the mesh asks for them.
    finish(start(one, "eight", {"data": 4, "tensor": 2}))
    same_rows(one / "one", one / "eight")
    name = Path("detection") / "a" / "n.nc"
    with (
        xr.open_dataset(one / "one" / name, engine="h5netcdf") as single,
        xr.open_dataset(one / "eight" / name, engine="h5netcdf") as eight,
    ):
        for score in ("region_sum", "visual_mass", "hit", "retrieval", "region_share"):
            np.testing.assert_allclose(single[score], eight[score], atol=1e-5, err_msg=score)


@pytest.mark.multidevice
def test_two_processes_equal_one(one):
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    mesh = {"data": 2, "tensor": 1}
    finish(*(start(one, "two", mesh, port, 2, index) for index in range(2)))
    same_rows(one / "one", one / "two")
