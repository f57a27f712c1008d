"""Compare a sharded decoder with the unsharded one, in a process of its own.

The number of host devices is fixed when jax starts, so tests start this file as a program:
``sharded_worker.py DEVICES CASES [PORT RANK]``, with CASES such as ``28/4:8x1,28/4:4x2``
(query heads / key-value heads : data x tensor). With PORT it is one of two processes with
DEVICES devices each. It prints one JSON object, case -> errors relative to the scale, tokens,
layouts.
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from support.decoders import SMALL, widened

from model_ports.block import DecoderConfig
from model_ports.decoder import Decoder
from model_ports.nn.mla import Latent
from model_ports.nn.moe import Experts
from model_ports.nn.rope import Rope
from model_ports.prompt import collate
from model_ports.sharding import make_mesh
from model_ports.vlm import VLM
from vrh_jax.engine.generate import generate
from vrh_jax.engine.self_check import Outcome, SelfCheck, relative_error, whole

CONFIGS: dict[str, DecoderConfig] = {
    # Qwen2.5's heads: seven queries per key-value head.
    "28/4": dataclasses.replace(SMALL, heads=28, kv_heads=4, vocab=64),
    # Query heads divide by four, key-value heads do not; nor does the vocabulary.
    "8/2": dataclasses.replace(SMALL, heads=8, kv_heads=2, vocab=61, qkv_bias=False),
    # Nothing but the MLP divides by four.
    "6/2": dataclasses.replace(SMALL, heads=6, kv_heads=2, vocab=61, tied=True),
    # Every device holds its heads, and a share of every expert.
    "experts": dataclasses.replace(
        SMALL,
        heads=8,
        kv_heads=8,
        head_dim=12,
        vocab=64,
        qkv_bias=False,
        rope=Rope(theta=500.0, pairs="adjacent", dim=4),
        latent=Latent(rank=9, nope=8, rope=4, value=5),
        experts=Experts(count=7, active=2, hidden=16, shared=2, scale=1.5, first=1),
    ),
}


def make_check(cfg: DecoderConfig) -> SelfCheck:
    """Wide random weights, five prompts in eight rows."""
    graphdef, state = nnx.split(VLM(Decoder(cfg, rngs=nnx.Rngs(0))))
    params = jax.tree.map(np.asarray, widened(nnx.to_pure_dict(state), 2))
    return SelfCheck(graphdef, params, rows=8, new=5)


def first_alone(check: SelfCheck) -> np.ndarray:
    """Greedy tokens of the first prompt in a batch of one, unsharded."""
    with jax.default_device(jax.local_devices()[0]):
        out = generate(
            check.graphdef,
            check.params,
            collate(check.prompts[:1], multiple=16),
            max_new=check.new,
            eos_ids=(0,),
            head_mask=jnp.asarray(check.mask[:1]),
        )
    return np.asarray(out.tokens[0])


def shard(array: jax.Array) -> list[int]:
    """Shape of what one device holds."""
    return list(array.sharding.shard_shape(array.shape))


def compare(sharded: Outcome, got: Outcome, expected: Outcome) -> dict[str, Any]:
    """What the tests assert on."""
    experts = "kv_b" in sharded.attention
    return {
        "logits": relative_error(got.logits, expected.logits),
        "mass": relative_error(got.tapped.mass, expected.tapped.mass),
        "top": bool(np.array_equal(got.tapped.top, expected.tapped.top)),
        "tokens": bool(np.array_equal(got.tokens, expected.tokens)),
        "mass_shard": shard(sharded.tapped.mass),
        "q_shard": shard(sharded.attention["q"]["kernel"]),
        "k_shard": shard(sharded.attention["kv_b" if experts else "k"]["kernel"]),
        "experts": int(experts),
        "all_gathers": sharded.program.count(" all-gather("),
        "all_reduces": sharded.program.count(" all-reduce("),
    }


def main(devices: int, cases: str, port: str = "", rank: str = "") -> None:
    """Print the report of this process."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", devices)
    if port:
        jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(rank))
    known: dict[str, tuple[SelfCheck, Outcome]] = {}
    report = {}
    for label in cases.split(","):
        name, sizes = label.split(":")
        if name not in known:
            check = make_check(CONFIGS[name])
            known[name] = check, check.alone()
            same = np.array_equal(first_alone(check), known[name][1].tokens[0])
            assert same, "a row of a batch differs from the prompt alone"
        check, expected = known[name]
        mesh = make_mesh(*map(int, sizes.split("x")))
        sharded = check.run(mesh)
        report[label] = compare(sharded, whole(sharded, mesh), expected)
    print(json.dumps(report))


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
