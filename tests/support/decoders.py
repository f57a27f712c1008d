"""Small random decoders with wide weights, and inputs for them."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model_ports.block import DecoderConfig
from model_ports.decoder import Decoder, Inputs
from model_ports.nn.attention import Tap
from model_ports.nn.rope import Rope

SMALL = DecoderConfig(
    vocab=61,
    layers=3,
    dim=40,
    heads=6,
    kv_heads=2,
    head_dim=8,
    mlp_dim=56,
    norm_eps=1e-6,
    rope=Rope(theta=1000.0),
    qkv_bias=True,
)


def widened(tree: Any, seed: int) -> Any:
    """Wide weights for a parameter tree: mistakes hide behind small defaults."""
    rng = np.random.default_rng(seed)

    def draw(path: tuple[Any, ...], leaf: Any) -> jax.Array:
        name = "/".join(str(part.key) for part in path)
        noise = rng.normal(0.0, 0.25, leaf.shape)
        return jnp.asarray(noise + ("norm" in name), leaf.dtype)

    return jax.tree_util.tree_map_with_path(draw, tree)


def random_decoder(cfg: DecoderConfig, seed: int, dtype: Any = jnp.float32) -> Decoder:
    """Decoder with wide random weights."""
    graphdef, state = nnx.split(Decoder(cfg, rngs=nnx.Rngs(0), dtype=dtype))
    decoder: Decoder = nnx.merge(graphdef, widened(nnx.to_pure_dict(state), seed))
    return decoder


@dataclasses.dataclass(frozen=True)
class Given:
    """Embeddings [B, T, D], positions [A, B, T], validity [B, T] and a tap of 3 rows, 2 sets."""

    x: jax.Array
    positions: jax.Array
    valid: jax.Array
    tap: Tap
    deepstack: jax.Array | None = None
    prefix: jax.Array | None = None

    def inputs(self, span: slice = slice(None)) -> Inputs:
        """What the decoder takes, or the tokens of a span."""
        return Inputs(
            self.x[:, span],
            self.positions[:, :, span],
            self.valid[:, span],
            self.deepstack,
            None if self.prefix is None else self.prefix[:, span],
        )


def inputs(
    cfg: DecoderConfig,
    lengths: tuple[int, ...],
    slots: int,
    seed: int,
    prefix: tuple[int, ...] | None = None,
) -> Given:
    """Random right-padded input; key sets have fractional weights on valid keys only.

    Args:
        prefix: number of leading tokens of each sample that see each other.
    """
    rng = np.random.default_rng(seed)
    b = len(lengths)
    x = rng.normal(0, 1, (b, slots, cfg.dim))
    positions = np.arange(slots) + np.zeros((cfg.rope.axes, b, 1))
    if cfg.rope.axes > 1:
        positions = positions + rng.integers(0, 5, (*positions.shape[:2], slots))
    valid = np.arange(slots) < np.array(lengths)[:, None]
    rows = np.stack([rng.integers(1, n, 3) for n in lengths])
    sets = rng.uniform(0.1, 1, (b, 2, slots)) * (rng.random((b, 2, slots)) < 0.4)
    return Given(
        x=jnp.asarray(x, jnp.float32),
        positions=jnp.asarray(positions, jnp.int32),
        valid=jnp.asarray(valid),
        tap=Tap(rows=jnp.asarray(rows, jnp.int32), sets=jnp.asarray(sets * valid[:, None])),
        prefix=None if prefix is None else jnp.arange(slots) < jnp.array(prefix)[:, None],
    )


def close(actual: Any, expected: Any, tolerance: float) -> None:
    """max |actual - expected| <= tolerance * max |expected|."""
    expected = np.asarray(expected, np.float64)
    scale = np.abs(expected).max(initial=1e-12)
    np.testing.assert_allclose(
        np.asarray(actual, np.float64), expected, rtol=0, atol=tolerance * scale
    )
