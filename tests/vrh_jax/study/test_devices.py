"""A study on eight devices gives what it gives on one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import xarray as xr
from support.copy_model import write_samples

TESTS = Path(__file__).parents[2]


def run(folder: Path, out: str, mesh: dict[str, int]) -> None:
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
    command = [sys.executable, "-m", "support.study_worker", str(config)]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=800, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.multidevice
def test_eight_devices_equal_one(tmp_path):
    write_samples(tmp_path / "n.jsonl", 30, seed=3)
    run(tmp_path, "one", {})
    # Eight virtual CPU devices are made because the mesh asks for them.
    run(tmp_path, "eight", {"data": 4, "tensor": 2})
    files = sorted((tmp_path / "one").rglob("*.parquet"))
    assert len(files) == 1 + 4
    for path in files:
        other = tmp_path / "eight" / path.relative_to(tmp_path / "one")
        assert pq.read_table(path).equals(pq.read_table(other)), path
    name = Path("detection") / "a" / "n.nc"
    with (
        xr.open_dataset(tmp_path / "one" / name, engine="h5netcdf") as one,
        xr.open_dataset(tmp_path / "eight" / name, engine="h5netcdf") as eight,
    ):
        for score in ("region_sum", "visual_mass", "hit", "retrieval", "region_share"):
            np.testing.assert_allclose(one[score], eight[score], atol=1e-5, err_msg=score)
