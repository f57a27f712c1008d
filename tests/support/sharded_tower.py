"""Compare a sharded Qwen vision tower with the unsharded one, in a process of its own.

The number of host devices is fixed when jax starts, so ``sharded`` starts this file as a program
with XLA_FLAGS set.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from model_ports.images.window_patches import window_patches
from model_ports.sharding import make_mesh, param_shardings
from model_ports.vision.qwen3_vit import Qwen3Vit, Qwen3VitConfig
from model_ports.vision.qwen_vit import QwenVit, QwenVitConfig

SHARED: dict[str, Any] = dict(
    depth=3, dim=64, heads=4, mlp_dim=40, out_dim=24, patch=14, temporal=2, merge=2, rope_theta=1e4
)
# Class, config, and visual tokens along one side of a window.
TOWERS: dict[str, tuple[Any, Any, int]] = {
    "qwen2.5": (QwenVit, QwenVitConfig(window=56, full_blocks=(1,), **SHARED), 2),
    "qwen3": (Qwen3Vit, Qwen3VitConfig(side=5, deepstack=(0, 2), **SHARED), 1),
}


def sharded(tower: str, data: int, tensor: int) -> dict[str, Any]:
    """Largest difference relative to the scale (``error``), and the shape of one device's query
    kernel (``shard``), on a mesh of data x tensor host devices."""
    flags = f"--xla_force_host_platform_device_count={data * tensor}"
    root = Path(__file__).parents[2]
    out = subprocess.run(
        [sys.executable, __file__, tower, str(data), str(tensor)],
        env={**os.environ, "PYTHONPATH": str(root), "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        check=False,
    )
    assert out.returncode == 0, out.stderr
    result: dict[str, Any] = json.loads(out.stdout.splitlines()[-1])
    return result


def main() -> None:
    make, cfg, side = TOWERS[sys.argv[1]]
    graphdef, state = nnx.split(make(cfg, rngs=nnx.Rngs(0)))
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda p: np.asarray(p + rng.normal(0, 0.1, p.shape), np.float32), nnx.to_pure_dict(state)
    )
    parts = [
        window_patches(
            rng.normal(0, 1, (28 * rows, 28 * columns, 3)).astype(np.float32),
            patch=14,
            temporal=2,
            merge=2,
            side=side,
        )
        for rows, columns in [(3, 5), (4, 3), (5, 4), (3, 4)]
    ]
    most = max(len(part.valid) for part in parts)
    arrays = [
        np.stack([np.pad(a, [(0, most - len(a))] + [(0, 0)] * (a.ndim - 1)) for a in column])
        for column in zip(*((p.patches, p.valid, p.hw) for p in parts), strict=True)
    ]
    forward = jax.jit(lambda params, *arrays: nnx.merge(graphdef, params)(*arrays))
    expected = jax.tree.map(np.asarray, forward(params, *arrays))
    mesh = make_mesh(int(sys.argv[2]), int(sys.argv[3]))
    shardings = param_shardings({"vision": params}, mesh)["vision"]
    placed = jax.device_put(params, shardings)
    with jax.set_mesh(mesh):
        got = jax.jit(lambda p, *a: nnx.merge(graphdef, p)(*a))(placed, *arrays)
    errors = jax.tree.map(lambda a, b: np.abs(a - b).max() / np.abs(b).max(), got, expected)
    kernel = placed["blocks"]["attn"]["q"]["kernel"]
    print(
        json.dumps(
            {
                "error": float(max(jax.tree.leaves(errors))),
                "shard": list(kernel.sharding.shard_shape(kernel.shape)),
            }
        )
    )


if __name__ == "__main__":
    main()
