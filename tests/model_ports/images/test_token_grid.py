"""Which visual tokens a box covers: rules against a painted image, and their properties."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_ports.images.token_grid import TokenGrid


def lattice(columns: int, rows: int, cell: int, view: int = 0, image: int = 0) -> TokenGrid:
    """Row-major cells of ``cell`` pixels."""
    y, x = np.divmod(np.arange(columns * rows), columns)
    rect = np.stack([x, y, x + 1, y + 1], -1).astype(float) * cell
    n = len(rect)
    return TokenGrid(
        slot=np.arange(n, dtype=np.int32),
        rect=rect,
        view=np.full(n, view, np.int32),
        image=np.full(n, image, np.int32),
    )


CELL, SIDE = 4, 6
edges = st.tuples(st.integers(0, CELL * SIDE), st.integers(0, CELL * SIDE)).map(sorted)


@given(x=edges, y=edges)
def test_rules_equal_painting_the_box(x: list[int], y: list[int]) -> None:
    grid = lattice(SIDE, SIDE, CELL)
    painted = np.zeros((CELL * SIDE, CELL * SIDE))
    painted[y[0] : y[1], x[0] : x[1]] = 1
    cells = painted.reshape(SIDE, CELL, SIDE, CELL).mean((1, 3)).reshape(-1)
    box = (x[0], y[0], x[1], y[1])
    np.testing.assert_allclose(grid.cover(box, rule="coverage"), cells, atol=1e-6)
    assert np.array_equal(grid.cover(box, rule="any"), cells > 0)
    # The centre of a cell of four pixels is the corner of its third pixel.
    centre = painted[CELL // 2 :: CELL, CELL // 2 :: CELL].reshape(-1)
    assert np.array_equal(grid.cover(box, rule="center"), centre)


number = st.floats(0, 30, allow_nan=False)


@given(a=number, b=number, c=number, d=number)
def test_order_of_the_rules(a: float, b: float, c: float, d: float) -> None:
    box = (min(a, c), min(b, d), max(a, c), max(b, d))
    grid = lattice(5, 7, 4)
    weights = {rule: grid.cover(box, rule=rule) for rule in ("any", "center", "coverage")}
    assert all(w.dtype == np.float32 and w.shape == (35,) for w in weights.values())
    assert (weights["coverage"] <= weights["any"] + 1e-6).all()
    if box[0] < box[2] and box[1] < box[3]:
        assert (weights["center"] <= weights["any"]).all()
    inside = np.minimum(box, (20, 28, 20, 28))
    area = (inside[2] - inside[0]) * (inside[3] - inside[1])
    assert weights["coverage"].sum() * 16 == pytest.approx(area, abs=1e-3)


def test_a_shared_edge_is_no_overlap_and_an_empty_box_covers_nothing() -> None:
    grid = lattice(2, 1, 10)
    assert grid.cover((10, 0, 20, 10)).tolist() == [0, 1]
    assert grid.cover((9.999, 0, 20, 10)).tolist() == [1, 1]
    for rule in ("any", "center", "coverage"):
        assert grid.cover((5, 5, 5, 5), rule=rule).sum() == 0


def test_views_and_images_are_kept_apart() -> None:
    whole, tile = lattice(1, 1, 8), lattice(2, 2, 4, view=1)
    other = lattice(1, 1, 8, image=1)
    grid = TokenGrid.concatenate([whole, tile, other])
    box = (0, 0, 3, 3)
    assert grid.cover(box).tolist() == [1, 1, 0, 0, 0, 0]
    assert grid.cover(box, views=[0]).tolist() == [1, 0, 0, 0, 0, 0]
    assert grid.cover(box, views=[1]).tolist() == [0, 1, 0, 0, 0, 0]
    assert grid.cover(box, image=1).tolist() == [0, 0, 0, 0, 0, 1]


def test_empty_grids() -> None:
    for grid in (TokenGrid.empty(), TokenGrid.concatenate([])):
        assert len(grid) == 0
        assert grid.cover((0, 0, 1, 1)).shape == (0,)
    together = TokenGrid.concatenate([TokenGrid.empty(), lattice(1, 1, 2)])
    assert [len(getattr(together, f.name)) for f in dataclasses.fields(TokenGrid)] == [1] * 4


def test_an_unknown_rule_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown cover rule 'most'"):
        lattice(1, 1, 2).cover((0, 0, 1, 1), rule="most")  # type: ignore[arg-type]
