"""Norms, rotary embeddings and projections against the formulas in float64."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support.decoders import close, widened

from model_ports.nn.attention import Visible
from model_ports.nn.linear import Linear
from model_ports.nn.mlp import MLP, GatedMLP
from model_ports.nn.norms import LayerNorm, RMSNorm
from model_ports.nn.rope import Rope, apply_rope, rope_tables


def wide(module: Any, seed: int) -> Any:
    graphdef, state = nnx.split(module)
    return nnx.merge(graphdef, widened(nnx.to_pure_dict(state), seed))


def value(param: Any) -> np.ndarray:
    return np.asarray(param[...], np.float64)


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.5, 2.0, shape)


@pytest.mark.parametrize("eps", [1e-6, 1e-1])
def test_norms(eps: float) -> None:
    x = normal(1, 3, 4, 17)
    rms, layer = wide(RMSNorm(17, eps=eps), 2), wide(LayerNorm(17, eps=eps), 3)
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * value(rms.scale)
    close(rms(jnp.asarray(x, jnp.float32)), expected, 1e-5)
    normed = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)
    expected = normed * value(layer.scale) + value(layer.bias)
    close(layer(jnp.asarray(x, jnp.float32)), expected, 1e-5)


def test_norm_statistics_are_float32_for_bfloat16_input() -> None:
    # In bfloat16 the sum of 4096 equal squares would stall at a fraction of its value.
    x = jnp.full((1, 4096), 3.0, jnp.bfloat16)
    out = RMSNorm(4096, eps=1e-6, dtype=jnp.bfloat16)(x)
    assert out.dtype == jnp.bfloat16
    assert np.array_equal(np.asarray(out, np.float32), np.ones((1, 4096)))


def test_linear_contracts_the_named_axes() -> None:
    x = normal(4, 2, 3, 4, 5)
    layer = wide(Linear((4, 5), (6, 7), bias=True, rngs=nnx.Rngs(0)), 5)
    expected = np.einsum("btnh,nhef->btef", x, value(layer.kernel)) + value(layer.bias)
    close(layer(jnp.asarray(x, jnp.float32)), expected, 1e-5)


def test_mlps() -> None:
    x = normal(6, 2, 3, 8)
    gated = wide(GatedMLP(8, 11, bias=True, rngs=nnx.Rngs(0)), 7)
    gate, up = (x @ value(m.kernel) + value(m.bias) for m in (gated.gate, gated.up))
    expected = (gate / (1 + np.exp(-gate)) * up) @ value(gated.down.kernel)
    close(gated(jnp.asarray(x, jnp.float32)), expected + value(gated.down.bias), 1e-5)

    erf = np.vectorize(math.erf)
    mlp = wide(MLP(8, 11, 5, rngs=nnx.Rngs(0)), 8)
    hidden = x @ value(mlp.fc1.kernel) + value(mlp.fc1.bias)
    hidden = hidden * 0.5 * (1 + erf(hidden / np.sqrt(2)))
    expected = hidden @ value(mlp.fc2.kernel) + value(mlp.fc2.bias)
    close(mlp(jnp.asarray(x, jnp.float32)), expected, 1e-5)


@pytest.mark.parametrize("sections", [None, (1, 2, 3), (4, 0, 2)])
def test_rope_turns_each_pair_by_the_position_of_its_axis(
    sections: tuple[int, ...] | None,
) -> None:
    rope = Rope(theta=100.0, sections=sections)
    positions = np.random.default_rng(9).integers(0, 40, (rope.axes, 2, 5))
    x = normal(10, 2, 5, 3, 12)
    cos, sin = rope_tables(jnp.asarray(positions, jnp.int32), rope, 12)
    owner = np.repeat(np.arange(rope.axes), sections or (6,))
    angle = np.stack([positions[owner[i]] * 100.0 ** (-i / 6) for i in range(6)], -1)
    turned = (x[..., :6] + 1j * x[..., 6:]) * np.exp(1j * angle)[:, :, None]
    expected = np.concatenate([turned.real, turned.imag], -1)
    close(apply_rope(jnp.asarray(x, jnp.float32), cos, sin), expected, 1e-5)


def test_rope_scores_depend_on_distance_only() -> None:
    q, k = normal(11, 1, 1, 1, 16), normal(12, 1, 1, 1, 16)
    rope = Rope(theta=1e4)

    def at(x: np.ndarray, position: int) -> np.ndarray:
        tables = rope_tables(jnp.full((1, 1, 1), position, jnp.int32), rope, 16)
        return np.asarray(apply_rope(jnp.asarray(x, jnp.float32), *tables), np.float64)

    scores = [float((at(q, 7 + shift) * at(k, shift)).sum()) for shift in (0, 3, 200)]
    np.testing.assert_allclose(scores, scores[0], rtol=1e-4)


def test_dynamic_ntk_changes_only_long_sequences() -> None:
    plain = Rope(theta=1e4)
    scaled = Rope(theta=1e4, dynamic_factor=2.0, max_positions=64)
    for length in (64, 65, 100):
        positions = jnp.arange(length, dtype=jnp.int32)[None, None]
        got = rope_tables(positions, scaled, 8)
        theta = 1e4 * max(1.0, 2.0 * length / 64 - 1) ** (8 / 6)
        angle = np.arange(length)[:, None] / theta ** (np.arange(4) / 4)
        np.testing.assert_allclose(got[0][0], np.cos(angle), atol=1e-5)
        np.testing.assert_allclose(got[1][0], np.sin(angle), atol=1e-5)
        same = np.array_equal(got[0], rope_tables(positions, plain, 8)[0])
        assert same == (length <= 64)


@pytest.mark.parametrize("length", [300, 32767, 32768, 32769, 40000])
def test_dynamic_ntk_at_the_published_length(length: int) -> None:
    """InternVL2.5: inert up to 32,768 tokens, then the base grows with the length."""
    rope = Rope(theta=1e6, dynamic_factor=2.0, max_positions=32768)
    positions = np.array([0, 1, 7, 60, length - 1])
    got = rope_tables(jnp.asarray(positions, jnp.int32)[None, None], rope, 128)
    theta = 1e6 * max(1.0, 2.0 * length / 32768 - 1) ** (128 / 126)
    angle = positions[:4, None] / theta ** (np.arange(64) / 64)  # far angles round in float32
    np.testing.assert_allclose(got[0][0, :4], np.cos(angle), atol=1e-5)
    np.testing.assert_allclose(got[1][0, :4], np.sin(angle), atol=1e-5)


def test_dynamic_ntk_goes_by_the_length_of_each_sample() -> None:
    """A batch equals its samples alone, whatever the padding (at position 0) makes of it."""
    rope = Rope(theta=1e4, dynamic_factor=2.0, max_positions=16)
    rows = [np.pad(np.arange(length), (40 - length, 0)) for length in (40, 12, 25)]
    batch = rope_tables(jnp.asarray(rows, jnp.int32)[None], rope, 8)
    for row, positions in enumerate(rows):
        alone = rope_tables(jnp.asarray(positions, jnp.int32)[None, None], rope, 8)
        for got, expected in zip(batch, alone, strict=True):
            np.testing.assert_allclose(got[row], expected[0], atol=1e-6)


def test_visibility_by_slot() -> None:
    valid = jnp.asarray([[False, True, True, False, True]])
    visible = Visible(first=jnp.asarray(2, jnp.int32), valid=valid)
    rows = visible.rows(jnp.asarray([[0, 1, 2]], jnp.int32))
    expected = [[0, 1, 1, 0, 0], [0, 1, 1, 1, 0], [0, 1, 1, 0, 1]]  # a padded query sees itself
    assert np.array_equal(rows[0], np.array(expected, bool))
    assert isinstance(rows, jax.Array)
