"""Scores of a head on one sample, as small functions of tapped attention rows.

Axis letters: L layers, B batch, N query heads, Q tapped rows, S keys. Key set 0 is the region
(visual tokens under the box, or the needle's tokens), key set 1 its domain (all visual
tokens, or the whole prompt).
"""

import dataclasses
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from model_ports.nn.attention import Tapped

REGION, DOMAIN = 0, 1
_TINY = 1e-12


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Context:
    """What a score may need besides the rows.

    Attributes:
        keys: float32 [B], weight of the region (its number of tokens).
        copied: bool [L, B, N, Q], the most attended key is the very token generated at this row.
    """

    keys: jax.Array
    copied: jax.Array


Score = Callable[[Tapped, Context], jax.Array]


def region_sum(tapped: Tapped, _: Context) -> jax.Array:
    """Attention on the region (the paper's default)."""
    return tapped.mass[..., REGION]


def region_mean(tapped: Tapped, context: Context) -> jax.Array:
    """Attention on the region per token of it."""
    return tapped.mass[..., REGION] / jnp.maximum(context.keys, _TINY)[None, :, None, None]


def visual_mass(tapped: Tapped, _: Context) -> jax.Array:
    """Attention on the domain: all visual tokens, or the whole prompt for text."""
    return tapped.mass[..., DOMAIN]


def region_share(tapped: Tapped, _: Context) -> jax.Array:
    """Attention on the region as a share of that on the domain."""
    return tapped.mass[..., REGION] / jnp.maximum(tapped.mass[..., DOMAIN], _TINY)


def hit(tapped: Tapped, _: Context) -> jax.Array:
    """1 where the most attended key lies in the region."""
    return tapped.hit[..., REGION]


def retrieval(tapped: Tapped, context: Context) -> jax.Array:
    """1 where it lies in the region and is the generated token (Wu et al., 2404.15574).

    Their code adds up steps and divides by the needle's length; the mean over answer rows is
    the same number when the answer is the needle.
    """
    return tapped.hit[..., REGION] * context.copied


# Name -> function to [L, B, N, Q]; all are computed in one pass and stored.
SCORES: Mapping[str, Score] = {
    f.__name__: f for f in (region_sum, region_mean, region_share, visual_mass, hit, retrieval)
}


def reduce_rows(values: jax.Array, weight: jax.Array) -> jax.Array:
    """Mean over the rows that count: values [L, B, N, Q], weight [B, Q] -> [B, L, N]."""
    total = jnp.einsum("lbnq,bq->bln", values, weight)
    return total / jnp.maximum(jnp.sum(weight, axis=1), 1.0)[:, None, None]
