"""Compare the sharded Qwen2.5 vision tower with the unsharded one, in a process of its own.

The number of host devices is fixed when jax starts, so a test starts this file as a program,
``sharded_tower.py DATA TENSOR``, with XLA_FLAGS set. Prints the largest difference relative to
the scale, and the shape of one device's query kernel.
"""

import json
import sys

import jax
import numpy as np
from flax import nnx

from model_ports.images.window_patches import window_patches
from model_ports.sharding import make_mesh, param_shardings
from model_ports.vision.qwen_vit import QwenVit, QwenVitConfig

CFG = QwenVitConfig(
    depth=3, dim=64, heads=4, mlp_dim=40, out_dim=24, patch=14, temporal=2, merge=2, window=56,
    full_blocks=(1,), rope_theta=1e4,
)  # fmt: skip


def main() -> None:
    graphdef, state = nnx.split(QwenVit(CFG, rngs=nnx.Rngs(0)))
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
            side=CFG.window_side,
        )
        for rows, columns in [(3, 5), (4, 3), (5, 4), (3, 4)]
    ]
    most = max(len(part.valid) for part in parts)
    arrays = [
        np.stack([np.pad(a, [(0, most - len(a))] + [(0, 0)] * (a.ndim - 1)) for a in column])
        for column in zip(*((p.patches, p.valid, p.hw) for p in parts), strict=True)
    ]
    forward = jax.jit(lambda params, *arrays: nnx.merge(graphdef, params)(*arrays))
    expected = np.asarray(forward(params, *arrays))
    mesh = make_mesh(int(sys.argv[1]), int(sys.argv[2]))
    shardings = param_shardings({"vision": params}, mesh)["vision"]
    placed = jax.device_put(params, shardings)
    with jax.set_mesh(mesh):
        got = np.asarray(jax.jit(lambda p, *a: nnx.merge(graphdef, p)(*a))(placed, *arrays))
    kernel = placed["blocks"]["attn"]["q"]["kernel"]
    print(
        json.dumps(
            {
                "error": float(np.abs(got - expected).max() / np.abs(expected).max()),
                "shard": list(kernel.sharding.shard_shape(kernel.shape)),
            }
        )
    )


main()
