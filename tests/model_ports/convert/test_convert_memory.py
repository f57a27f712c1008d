"""Memory of a conversion: at most twice the largest source tensor plus 1 GiB, measured."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.checkpoints import llama_config, write_big

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="needs Linux: peak memory is read from /proc"
)
MIB = 1 << 20
CODE = """
import json, sys, time
from pathlib import Path
from model_ports.convert.plan import plan_folder
from model_ports.convert.save import save
from model_ports.convert.verify import verify_folder
from model_ports.convert.export import export_folder
def peak():
    # Not ru_maxrss: Linux carries the parent's peak across exec, so a large pytest process
    # would be measured instead of the conversion.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
base = Path(sys.argv[1])
plan = plan_folder(base / "source")
start, began = peak(), time.monotonic()
report = save(plan, base / "out")
steps = {"start": start, "convert": peak(), "seconds": report.seconds}
assert verify_folder(base / "out", logits=False)["ok"]
steps["verify"] = peak()
export_folder(base / "out", base / "back")
steps["export"] = peak()
largest_parameter = max(t.nbytes for t in plan.targets.values())
print(json.dumps({**steps, "largest": plan.headers.largest, "total": plan.nbytes,
                  "parameter": largest_parameter}))
"""


def measure(base):
    # Files are compared, not the sizes that earlier runs left in the parent's memory.
    run = subprocess.run(
        [sys.executable, "-c", CODE, str(base)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    found = json.loads(run.stdout)
    speed = found["total"] / 1e6 / found["seconds"]
    print({k: round(v / MIB) for k, v in found.items() if k != "seconds"}, f"{speed:.0f} MB/s")
    return found


def test_memory_is_bounded(tmp_path):
    """300 MB in three files; a stacked parameter is far larger than any source tensor."""
    config = llama_config(
        hidden_size=512, intermediate_size=2048, num_attention_heads=8, num_key_value_heads=2,
        num_hidden_layers=36, vocab_size=16001,
    )  # fmt: skip
    write_big(tmp_path / "source", config, shard_bytes=120 * MIB)
    assert len(list((tmp_path / "source").glob("*.safetensors"))) == 3
    found = measure(tmp_path)
    assert found["parameter"] > 4 * found["largest"] * 0.9
    assert found["total"] > 280 * MIB
    for step in ("convert", "verify", "export"):
        assert found[step] <= 2 * found["largest"] + 1024 * MIB
        # Far tighter at this size: what the imports take, and some tensors and chunks.
        assert found[step] - found["start"] <= 8 * found["largest"] + 60 * MIB


def test_the_measure_is_not_that_of_the_parent():
    """A small child of a large process reports its own peak."""
    ballast = bytearray(b"x" * (700 * MIB))
    code = CODE[CODE.index("def peak") : CODE.index("base =")]
    run = subprocess.run(
        [sys.executable, "-c", f"from pathlib import Path\n{code}\nprint(peak())"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert len(ballast) == 700 * MIB
    assert MIB < int(run.stdout) < 100 * MIB


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_memory_is_bounded_for_several_gigabytes(tmp_path):
    config = llama_config(
        vocab_size=100003, hidden_size=2048, num_hidden_layers=26, num_attention_heads=16,
        num_key_value_heads=4, head_dim=128, intermediate_size=6144,
    )  # fmt: skip
    write_big(tmp_path / "source", config, shard_bytes=1 << 30)
    found = measure(tmp_path)
    assert found["total"] > 3 * 10**9
    assert found["parameter"] > 600 * MIB
    for step in ("convert", "verify", "export"):
        assert found[step] <= 2 * found["largest"] + 1024 * MIB
