"""Position tables of vision towers, resampled to an image's grid of patches.

Every axis gives a few taps (rows or columns of the table, with weights); a position is the sum
over the products of its row taps and column taps. With antialiasing a position may need the
whole table: then every axis gives weights of all its entries.

Axis letters: R, C rows and columns of the table, D width, K taps.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

# Coefficient of the cubic convolution kernel (Keys 1981) in torch; others use -0.5.
CUBIC_A = -0.75


class Taps(NamedTuple):
    """Entries of one axis of a table, and their weights.

    Attributes:
        entry: int32 [..., K].
        weight: float32 [..., K].
    """

    entry: jax.Array
    weight: jax.Array


def linear_taps(coordinate: jax.Array, size: int) -> Taps:
    """Two taps of linear interpolation.

    Args:
        coordinate: float32 [...] within [0, size - 1], in entries of the table.
        size: entries of the axis.
    """
    first = jnp.floor(coordinate)
    above = coordinate - first
    index = first[..., None].astype(jnp.int32) + jnp.arange(2)
    return Taps(jnp.clip(index, 0, size - 1), jnp.stack([1 - above, above], axis=-1))


def cubic_taps(coordinate: jax.Array, size: int) -> Taps:
    """Four taps of cubic convolution, those outside the table clamped to its border.

    Reference: torch ``grid_sample(mode="bicubic", padding_mode="border")``.

    Args:
        coordinate: float32 [...], in entries of the table; 0 is the centre of entry 0.
        size: entries of the axis.
    """
    first = jnp.floor(coordinate)
    offsets = jnp.arange(-1, 3)
    x = jnp.abs((coordinate - first)[..., None] - offsets)
    a = CUBIC_A
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    index = jnp.clip(first[..., None].astype(jnp.int32) + offsets, 0, size - 1)
    return Taps(index, jnp.where(x <= 1, near, far))


def sample_table(table: jax.Array, rows: Taps, columns: Taps) -> jax.Array:
    """table [R, C, D] at points [...] -> [..., D], summed in float32, dtype of the table."""
    total = jnp.zeros((*rows.entry.shape[:-1], table.shape[-1]), jnp.float32)
    for i in range(rows.entry.shape[-1]):
        for j in range(columns.entry.shape[-1]):
            weight = rows.weight[..., i] * columns.weight[..., j]
            value = table[rows.entry[..., i], columns.entry[..., j]]
            total += weight[..., None] * value.astype(jnp.float32)
    return total.astype(table.dtype)


def antialias_weights(index: jax.Array, count: jax.Array, size: int) -> jax.Array:
    """Weights of all entries of an axis in linear resizing with antialiasing.

    The triangle is as wide as the distance of neighbours, in entries of the table, where the
    result has fewer of them than the table, and two entries wide where it has more.
    Reference: torch ``interpolate(mode="bilinear", align_corners=False, antialias=True)``.

    Args:
        index: int32 [...], entry of the result.
        count: int32 [...], entries of the result; at least 1.
        size: entries of the table.

    Returns:
        float32 [..., size], summing to 1.
    """
    scale = size / count.astype(jnp.float32)
    centre = (index.astype(jnp.float32) + 0.5) * scale - 0.5
    away = jnp.abs(jnp.arange(size) - centre[..., None])
    weight = jnp.maximum(1 - away / jnp.maximum(scale, 1)[..., None], 0)
    return weight / jnp.sum(weight, axis=-1, keepdims=True)


def blend_table(table: jax.Array, rows: jax.Array, columns: jax.Array) -> jax.Array:
    """table [R, C, D] under weights [..., R] and [..., C] -> [..., D], summed in float32, dtype
    of the table."""
    weight = (rows[..., :, None] * columns[..., None, :]).reshape(*rows.shape[:-1], -1)
    flat = table.reshape(-1, table.shape[-1]).astype(jnp.float32)
    total = jnp.matmul(weight, flat, precision=jax.lax.Precision.HIGHEST)
    return total.astype(table.dtype)
