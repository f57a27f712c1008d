"""Mixture of experts against a loop over tokens in float64."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support.decoders import close, widened

from model_ports.nn.moe import Experts, MoE
from model_ports.sharding import constrain

CFG = Experts(count=7, active=3, hidden=5, shared=2, scale=1.5)


def wide(cfg: Experts, seed: int = 1) -> MoE:
    graphdef, state = nnx.split(MoE(8, cfg, rngs=nnx.Rngs(0), dtype=jnp.float32))
    return nnx.merge(graphdef, widened(nnx.to_pure_dict(state), seed))


def gated(x: np.ndarray, gate: np.ndarray, up: np.ndarray, down: np.ndarray) -> np.ndarray:
    inner = x @ gate
    return (inner / (1 + np.exp(-inner)) * (x @ up)) @ down


def loop(moe: MoE, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(output, tokens of each expert), token by token."""
    cfg = moe.cfg

    def kernels(part) -> list[np.ndarray]:
        return [
            np.asarray(getattr(part, n).kernel[...], np.float64) for n in ("gate", "up", "down")
        ]

    routed, shared = kernels(moe.experts), kernels(moe.shared)
    router = np.asarray(moe.router.kernel[...], np.float64)
    out, load = np.zeros_like(x), np.zeros(cfg.count, int)
    for at in np.ndindex(x.shape[:2]):
        logits = x[at] @ router
        scores = np.exp(logits - logits.max())
        scores /= scores.sum()
        out[at] = gated(x[at], *shared)
        for expert in np.argsort(-scores, kind="stable")[: cfg.active]:
            load[expert] += 1
            weight = cfg.scale * scores[expert]
            out[at] += weight * gated(x[at], *(kernel[expert] for kernel in routed))
    return out, load


@pytest.mark.parametrize(
    ("cfg", "shape"),
    [
        (CFG, (2, 9)), (dataclasses.replace(CFG, active=7), (1, 4)),
        (dataclasses.replace(CFG, active=1, count=40), (3, 2)), (CFG, (1, 1)),
    ],
    ids=["some", "all of them", "most experts without a token", "one token"],
)  # fmt: skip
def test_equals_a_loop_over_tokens(cfg: Experts, shape: tuple[int, int]) -> None:
    moe = wide(cfg)
    x = np.random.default_rng(2).normal(0, 1, (*shape, 8))
    expected, load = loop(moe, x)
    if cfg.count == 40:
        assert (load == 0).sum() > 30
    graphdef, state = nnx.split(moe)
    run = jax.jit(lambda state, x: nnx.merge(graphdef, state)(x))
    close(run(state, jnp.asarray(x, jnp.float32)), expected, 1e-5)


def test_every_token_may_choose_the_same_experts() -> None:
    moe = wide(CFG)
    x = np.repeat(np.random.default_rng(3).normal(0, 1, (1, 1, 8)), 6, axis=1)
    expected, load = loop(moe, x)
    assert sorted(load) == [0, 0, 0, 0, 6, 6, 6]
    close(moe(jnp.asarray(x, jnp.float32)), expected, 1e-5)


def test_routing_is_float32_for_bfloat16_input() -> None:
    """In bfloat16, scores of 64 experts that differ by a part in a thousand would be ties."""
    moe = wide(CFG)
    x = jnp.asarray(np.random.default_rng(4).normal(0, 1, (1, 5, 8)), jnp.bfloat16)
    scores = moe.router(x)
    assert scores.dtype == jnp.float32
    exact = np.asarray(x, np.float64) @ np.asarray(moe.router.kernel[...], np.float64)
    weights = np.exp(exact - exact.max(-1, keepdims=True))
    close(scores, weights / weights.sum(-1, keepdims=True), 1e-6)
    rough = jax.tree.map(lambda p: p.astype(jnp.bfloat16), nnx.split(moe)[1])
    out = nnx.merge(nnx.split(moe)[0], rough)(x)
    assert out.dtype == jnp.bfloat16
    close(np.asarray(out, np.float32), loop(moe, np.asarray(x, np.float64))[0], 0.05)


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_accelerators_get_a_grouped_matrix_product(platform: str) -> None:
    """No array has an axis of all experts beside one of all tokens."""
    graphdef, state = nnx.split(nnx.eval_shape(lambda: MoE(
        16, dataclasses.replace(CFG, count=61), rngs=nnx.Rngs(0), dtype=jnp.float32
    )))  # fmt: skip
    run = jax.jit(lambda state, x: nnx.merge(graphdef, state)(x))
    x = jax.ShapeDtypeStruct((2, 50, 16), jnp.float32)
    text = run.trace(state, x).lower(lowering_platforms=(platform,)).as_text()
    assert text.count("chlo.ragged_dot") >= 3
    assert "tensor<61x300x" not in text


def test_without_a_mesh_there_is_no_partitioning() -> None:
    text = (
        jax.jit(lambda x: wide(CFG)(constrain(x, "batch", None, None)))
        .lower(jnp.ones((1, 3, 8)))
        .as_text()
    )
    assert "sharding" not in text
