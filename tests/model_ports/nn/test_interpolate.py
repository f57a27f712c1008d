"""Resampled position tables against torch, in fp32."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from support.parity import assert_close

from model_ports.nn.interpolate import cubic_taps, sample_table


@pytest.mark.parametrize("shape", [(24, 24), (3, 7), (1, 2)])
def test_bicubic_with_clamped_borders(shape):
    rng = np.random.default_rng(sum(shape))
    table = rng.normal(0, 1, (*shape, 5)).astype(np.float32)
    at = rng.uniform(-0.1, 1.1, (40, 2)).astype(np.float32)  # a little outside the table too
    with torch.no_grad():
        grid = torch.tensor(at[:, ::-1] * 2 - 1)[None, :, None]
        want = torch.nn.functional.grid_sample(
            torch.tensor(table).permute(2, 0, 1)[None],
            grid,
            mode="bicubic",
            padding_mode="border",
            align_corners=False,
        )[0, :, :, 0].T
    points = [jnp.asarray(at[:, i]) * shape[i] - 0.5 for i in range(2)]
    got = sample_table(
        jnp.asarray(table), cubic_taps(points[0], shape[0]), cubic_taps(points[1], shape[1])
    )
    assert_close(got, want, 1e-5, "bicubic")


def test_entries_are_kept_and_dtype_is_the_tables():
    table = jnp.asarray(np.random.default_rng(0).normal(0, 1, (4, 3, 6)), jnp.bfloat16)
    rows, columns = (a.reshape(-1) for a in np.indices((4, 3)).astype(np.float32))
    got = sample_table(table, cubic_taps(rows, 4), cubic_taps(columns, 3))
    assert got.dtype == jnp.bfloat16
    assert np.array_equal(got, table.reshape(12, 6))
