"""Cut a resized image into patches, grouped into attention windows of one size.

Axis letters: W windows, C patches of a window, P values of a patch, V visual tokens.
A visual token is a block of merge x merge patches. Windows at the right and bottom edge are
padded to the full size; ``valid`` tells.
"""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class WindowPatches:
    """One image for a windowed vision tower.

    Attributes:
        patches: float32 [W, C, P]; the C patches of a window keep those of a token together.
        valid: bool [W, C], False on padding.
        hw: int32 [W, C, 2], row and column of each patch.
        order: int32 [V], for tokens in raster order: which token, counted along W and C.
    """

    patches: np.ndarray
    valid: np.ndarray
    hw: np.ndarray
    order: np.ndarray


def size_bucket(count: int) -> int:
    """``count`` rounded up to three significant bits (at most 25 % more), so that few shapes
    are compiled."""
    step = 1 << max(count.bit_length() - 3, 0)
    return -(-count // step) * step


def _to_windows(cells: np.ndarray, side: int, *, repeat: int = 1) -> np.ndarray:
    """[rows, columns, ...] -> [W, side, side, ...], windows row-major, zero where there is none.

    ``cells`` is usually a transposed view of the pixels; every value is written once, straight
    to its place, since this is most of the time that an image takes.

    Args:
        repeat: length that axis 5 of ``cells``, then of length 1, gets in the result.
    """
    rows, columns = cells.shape[:2]
    down, across = -(-rows // side), -(-columns // side)
    inner = list(cells.shape[2:])
    if repeat > 1:
        inner[3] = repeat
    out = np.zeros((size_bucket(down * across), side, side, *inner), cells.dtype)
    windows = out[: down * across].reshape(down, across, side, side, *inner)
    for top, bottom, height in _runs(rows, side):
        for left, right, width in _runs(columns, side):
            part = cells[
                top * side : top * side + (bottom - top) * height,
                left * side : left * side + (right - left) * width,
            ]
            part = part.reshape(bottom - top, height, right - left, width, *cells.shape[2:])
            windows[top:bottom, left:right, :height, :width] = part.swapaxes(1, 2)
    return out


def _runs(count: int, side: int) -> list[tuple[int, int, int]]:
    """(first window, end, cells in each) of the whole windows, and of the one cut off, if any."""
    whole, rest = divmod(count, side)
    runs = [(0, whole, side), (whole, whole + 1, rest)]
    return [(first, end, cells) for first, end, cells in runs if end > first and cells]


def window_patches(
    pixels: np.ndarray, *, patch: int, temporal: int, merge: int, side: int
) -> WindowPatches:
    """Patches of one image, in windows.

    Args:
        pixels: float32 [height, width, 3], sides multiples of ``patch * merge``.
        patch: side of a patch in pixels.
        temporal: frames of a patch; a still image is repeated.
        merge: patches along one side of a visual token.
        side: visual tokens along one side of a window.

    Returns:
        Arrays whose W is rounded up by ``size_bucket``. P runs over (channel, frame, row,
        column), the order of the published patch embedding.
    """
    height, width, channels = pixels.shape
    rows, columns = height // (patch * merge), width // (patch * merge)
    blocks = pixels.reshape(rows, merge, patch, columns, merge, patch, channels)
    blocks = blocks.transpose(0, 3, 1, 4, 6, 2, 5)  # rows, columns, merge, merge, channel, p, p

    grid = np.indices((rows * merge, columns * merge), np.int32).transpose(1, 2, 0)
    hw = grid.reshape(rows, merge, columns, merge, 2).swapaxes(1, 2)
    hw = hw.reshape(rows, columns, merge * merge, 2)

    row, column = np.indices((rows, columns))
    window = (row // side) * -(-columns // side) + column // side
    order = window * side * side + (row % side) * side + column % side

    patches = _to_windows(blocks[:, :, :, :, :, None], side, repeat=temporal)
    windows, per_window = len(patches), side * side * merge * merge
    return WindowPatches(
        patches=patches.reshape(windows, per_window, -1),
        valid=_to_windows(np.ones(hw.shape[:3], bool), side).reshape(windows, per_window),
        hw=_to_windows(hw, side).reshape(windows, per_window, 2),
        order=order.reshape(-1).astype(np.int32),
    )
