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


def _to_windows(cells: np.ndarray, side: int) -> np.ndarray:
    """[rows, columns, M, ...] -> [W, side * side * M, ...], zero-padded, windows row-major."""
    rows, columns = cells.shape[:2]
    pads = [(0, -rows % side), (0, -columns % side)] + [(0, 0)] * (cells.ndim - 2)
    padded = np.pad(cells, pads)
    down, across = padded.shape[0] // side, padded.shape[1] // side
    windows = padded.reshape(down, side, across, side, *cells.shape[2:]).swapaxes(1, 2)
    return windows.reshape(down * across, side * side * cells.shape[2], *cells.shape[3:])


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
    frames = np.repeat(blocks[:, :, :, :, :, None], temporal, axis=5)
    cells = frames.reshape(rows, columns, merge * merge, -1)

    grid = np.indices((rows * merge, columns * merge), np.int32).transpose(1, 2, 0)
    hw = grid.reshape(rows, merge, columns, merge, 2).swapaxes(1, 2)
    hw = hw.reshape(rows, columns, merge * merge, 2)

    row, column = np.indices((rows, columns))
    window = (row // side) * -(-columns // side) + column // side
    order = window * side * side + (row % side) * side + column % side

    used = [_to_windows(a, side) for a in (cells, np.ones(hw.shape[:3], bool), hw)]
    more = size_bucket(len(used[0])) - len(used[0])
    out = [np.pad(a, [(0, more)] + [(0, 0)] * (a.ndim - 1)) for a in used]
    return WindowPatches(
        patches=out[0], valid=out[1], hw=out[2], order=order.reshape(-1).astype(np.int32)
    )
