"""Cells of an even grid, and crops of a canvas in the order of their tokens."""

import numpy as np

from model_ports.images.crops import Layout, even_cells, split_canvas, token_map


def test_edges_that_fall_on_whole_pixels_are_whole():
    """Else a box that ends at a cell would seem to overlap it by a rounding error."""
    for width in range(1, 400, 7):
        for columns in range(1, 50):
            left, _, right, _ = even_cells((width, 10), columns, 1).T
            exact = np.arange(columns + 1) * width
            whole = exact % columns == 0
            edges = np.append(left, right[-1])
            assert np.array_equal(edges[whole], exact[whole] // columns)
            assert np.array_equal(left[1:], right[:-1])


def test_an_even_layout_is_row_major():
    layout = Layout.even((30, 10), 3, 2)
    assert layout.index.tolist() == [0, 1, 2, 3, 4, 5]
    assert layout.rect[[0, 2, 3]].tolist() == [[0, 0, 10, 5], [20, 0, 30, 5], [0, 5, 10, 10]]
    assert layout.view.tolist() == [0] * 6


def test_crops_and_the_map_of_tokens_agree():
    """With a token per pixel: the map numbers the pixels of the crops in their order."""
    canvas = np.arange(6 * 4 * 3).reshape(6, 4, 3)
    crops = split_canvas(canvas, 2)
    assert crops.shape == (6, 3, 2, 2)
    numbers = token_map(2, 3, 2)
    assert np.array_equal(crops.transpose(0, 2, 3, 1).reshape(-1, 3)[numbers], canvas)
