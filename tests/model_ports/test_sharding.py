"""The sharding table, and sharded runs on forced host devices against one device."""

import functools
import json
import math
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from model_ports.catalogue import PUBLISHED, published_config
from model_ports.errors import UserError
from model_ports.port import abstract_model
from model_ports.registry import port_for
from model_ports.sharding import PARAM_AXES, constrain, make_mesh, param_spec

WORKER = Path(__file__).parents[1] / "support" / "sharded_worker.py"
ROOT = Path(__file__).parents[2]


def start(*arguments: str) -> subprocess.Popen[str]:
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")
    }
    return subprocess.Popen(
        [sys.executable, str(WORKER), *arguments],
        cwd=ROOT,
        env=environment | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def report(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=800)
    assert process.returncode == 0, err[-3000:]
    found: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return found


# Case -> shard of the key sets' mass [L, B, N, Q, R] = [3, 8, N, 2, 2], of the query kernels
# [3, 40, N, 8] and of the key kernels. What does not divide is replicated.
EIGHT = {
    "28/4:8x1": ([3, 1, 28, 2, 2], [3, 40, 28, 8], [3, 40, 4, 8]),
    "28/4:4x2": ([3, 2, 14, 2, 2], [3, 40, 14, 8], [3, 40, 2, 8]),
    "28/4:2x4": ([3, 4, 7, 2, 2], [3, 40, 7, 8], [3, 40, 1, 8]),
    "28/4:1x8": ([3, 8, 28, 2, 2], [3, 40, 28, 8], [3, 40, 4, 8]),
    "8/2:2x4": ([3, 4, 2, 2, 2], [3, 40, 2, 8], [3, 40, 2, 8]),
    "6/2:2x4": ([3, 4, 6, 2, 2], [3, 40, 6, 8], [3, 40, 2, 8]),
    # Latent attention, and experts in the last two of three layers.
    "experts:4x2": ([3, 2, 4, 2, 2], [2, 40, 4, 12], [2, 9, 4, 13]),
    "experts:1x8": ([3, 8, 1, 2, 2], [2, 40, 1, 12], [2, 9, 1, 13]),
}


def check(found: dict[str, Any], layout: tuple[list[int], list[int], list[int]]) -> None:
    assert found["logits"] < 1e-5
    assert found["mass"] < 1e-5
    assert found["top"], "another key is the most attended"
    assert found["tokens"], "greedy answers differ"
    assert [found["mass_shard"], found["q_shard"], found["k_shard"]] == list(layout)
    # Two sums per layer (the scan holds one layer) and one for the embedding table; a gather
    # would mean that some device collects what the table says is spread.
    assert found["all_gathers"] == 0
    # A stack of layers with experts after another one sums three times more.
    assert found["all_reduces"] <= 3 + 3 * found["experts"]


@pytest.fixture(scope="module")
def eight() -> dict[str, Any]:
    return report(start("8", ",".join(EIGHT)))


@pytest.mark.slow
@pytest.mark.multidevice
@pytest.mark.parametrize("case", EIGHT)
def test_eight_devices_equal_one(case: str, eight: dict[str, Any]) -> None:
    check(eight[case], EIGHT[case])


@pytest.mark.slow
@pytest.mark.multidevice
def test_two_processes_equal_one_device() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    cases = ("28/4:4x2", "28/4:2x4", "28/4:1x8")  # the last spreads heads over both processes
    processes = [start("4", ",".join(cases), port, rank) for rank in "01"]
    try:
        reports = [report(process) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for found in reports:
        for case in cases:
            check(found[case], EIGHT[case])


def mesh_of(data: int, tensor: int) -> AbstractMesh:
    return AbstractMesh((data, tensor), ("data", "tensor"))


@pytest.mark.parametrize(
    ("path", "shape", "spec"),
    [
        ("decoder/layers/attn/q/kernel", (28, 3584, 28, 128), P(None, None, "tensor", None)),
        ("decoder/layers/attn/k/bias", (28, 4, 128), P(None, "tensor", None)),
        ("decoder/layers/attn/o/kernel", (28, 28, 128, 3584), P(None, "tensor", None, None)),
        ("decoder/layers/mlp/up/kernel", (28, 3584, 18944), P(None, None, "tensor")),
        ("decoder/layers/mlp/down/kernel", (28, 18944, 3584), P(None, "tensor", None)),
        ("decoder/layers/pre_attn_norm/scale", (28, 3584), P()),
        ("decoder/layers/attn/kv_b/kernel", (26, 512, 16, 256), P(None, None, "tensor", None)),
        ("decoder/layers/mlp/shared/down/kernel", (26, 2816, 2048), P(None, "tensor", None)),
        (
            "decoder/layers/mlp/experts/up/kernel",
            (26, 64, 2048, 1408),
            P(None, None, None, "tensor"),
        ),
        (
            "decoder/layers/mlp/experts/down/kernel",
            (26, 64, 1408, 2048),
            P(None, None, "tensor", None),
        ),
        ("decoder/embed/embedding", (152064, 3584), P("tensor", None)),
        ("decoder/embed/embedding", (151653, 3584), P(None, None)),
        ("decoder/lm_head/kernel", (3584, 152064), P(None, "tensor")),
    ],
)
def test_table(path: str, shape: tuple[int, ...], spec: P) -> None:
    assert param_spec(path, shape, mesh_of(2, 4)) == spec


def test_key_value_heads_that_do_not_divide_are_replicated() -> None:
    mesh = mesh_of(1, 8)
    for part in ("q", "k", "v"):
        kernel = f"decoder/layers/attn/{part}/kernel"
        assert param_spec(kernel, (28, 3584, 4, 128), mesh) == P(None, None, None, None)


@functools.cache
def full_size_parameters() -> dict[str, dict[str, tuple[int, ...]]]:
    """Config fixture -> parameter path -> shape, without allocating anything."""
    found = {}
    for file in sorted(PUBLISHED.glob("*/config.json")):
        raw = published_config(file.parent.name)
        port = port_for(raw)
        _, tree = abstract_model(port, port.read_config(raw))
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        shapes = {"/".join(str(p.key) for p in path): x.shape for path, x in leaves}
        found[file.parent.name] = shapes
    return found


def test_every_row_of_the_table_names_parameters_of_a_port() -> None:
    """A renamed parameter would silently be replicated on every device."""
    names = {name for parameters in full_size_parameters().values() for name in parameters}
    for pattern, _ in PARAM_AXES:
        assert any(re.search(pattern, name) for name in names), pattern


# Between tower and language model, where a convolution mixes all channels, and what all heads or
# experts share.
REPLICATED = re.compile(
    r"vision/(downsample|merger/proj|positions$|stage\d/(blocks/conv|down))|^projector/kernel$"
    r"|attn/kv_a/kernel$|mlp/router/kernel$"
)
# Vocabularies and numbers of heads that do not divide by four.
ODD = {151674, 92553, 128261, 2, 3, 9, 10}


def test_large_parameters_are_spread_over_four_devices() -> None:
    assert full_size_parameters()
    for model, parameters in full_size_parameters().items():
        for name, shape in parameters.items():
            if math.prod(shape) < 2e6 or REPLICATED.search(name):
                continue
            assert "tensor" in param_spec(name, shape, mesh_of(1, 1)), (model, name)
            spread = "tensor" in param_spec(name, shape, mesh_of(1, 4))
            assert spread or ODD & set(shape), (model, name, shape)


def test_a_mesh_of_the_wrong_size_is_refused() -> None:
    with pytest.raises(UserError, match=r"mesh 3 x 1.*needs 3 devices, but 1 are there"):
        make_mesh(3, 1, devices=jax.devices()[:1])


def test_without_a_mesh_annotations_are_no_operation() -> None:
    x = jnp.asarray(np.ones((2, 3)))
    assert constrain(x, "batch", "heads") is x
