"""Reduction of images to a smaller size by integer arithmetic, with the same result everywhere."""

import numpy as np

from pixelcnn.data.image_rules import Reduce


def centred_square(width: int, height: int) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom of the largest centred square, in pixels."""
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side


def _summed_rows(levels: np.ndarray, size: int) -> np.ndarray:
    side, rest = len(levels), levels.shape[1:]
    if side % size == 0:
        return size * levels.reshape(size, side // size, *rest).sum(axis=1, dtype=np.int64)
    rows = []
    for cell in range(size):
        low, high = cell * side, (cell + 1) * side
        first, stop = low // size, -(-high // size)
        weights = np.diff(np.clip(np.arange(first, stop + 1) * size, low, high))
        rows.append(weights @ levels[first:stop].reshape(stop - first, -1).astype(np.int64))
    return np.stack(rows).reshape(size, *rest)


def area_averaged(levels: np.ndarray, size: int, width: int | None = None) -> np.ndarray:
    """Return the mean level over each cell's area, [size, width, channels], rounded half up."""
    area = levels.shape[0] * levels.shape[1]
    rows = _summed_rows(levels, size).swapaxes(0, 1)
    summed = _summed_rows(rows, size if width is None else width).swapaxes(0, 1)
    return ((2 * summed + area) // (2 * area)).astype(levels.dtype)


def subsample_pixels(levels: np.ndarray, size: int) -> np.ndarray:
    """Return every k-th pixel of the centred square with side k * size, [size, size, ...].

    k is floor(side / size). The upper left pixel of each block of k x k pixels is used, like group
    1 of Reed et al. 2017, section 3.
    """
    step = len(levels) // size
    first = (len(levels) - step * size) // 2
    chosen = slice(first, first + step * (size - 1) + 1, step)
    return levels[chosen, chosen]


def grey(levels: np.ndarray) -> np.ndarray:
    """Convert RGB [..., 3] to luma [..., 1] by ITU-R BT.601, in 16-bit fixed point."""
    weighted = levels.astype(np.int64) @ np.array([19595, 38470, 7471], np.int64)
    return ((weighted + 32768) >> 16).astype(levels.dtype)[..., None]


def with_channels(levels: np.ndarray, channels: int) -> np.ndarray:
    """Convert an image [..., 1 or 3] to `channels` channels, from grey to RGB or RGB to luma."""
    if levels.shape[-1] == channels:
        return levels
    return grey(levels) if channels == 1 else np.repeat(levels, 3, axis=-1)


def fit_longer_side(levels: np.ndarray, size: int, channels: int) -> np.ndarray:
    """Reduce an image of 1 or 3 channels to a longer side of `size`, [height, width, channels]."""
    height, width = levels.shape[:2]
    longer = max(height, width)
    sides = [max(1, (2 * side * size + longer) // (2 * longer)) for side in (height, width)]
    return np.ascontiguousarray(with_channels(area_averaged(levels, *sides), channels))


def fit_square(levels: np.ndarray, size: int, channels: int, reduce: Reduce) -> np.ndarray:
    """Crop uint8 or uint16 levels to the centred square, reduced to [size, size, channels]."""
    left, top, right, bottom = centred_square(levels.shape[1], levels.shape[0])
    square = levels[top:bottom, left:right]
    reduced = (
        subsample_pixels(square, size) if reduce == "subsample" else area_averaged(square, size)
    )
    return np.ascontiguousarray(with_channels(reduced, channels))
