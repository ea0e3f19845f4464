"""Checks of arrays that should be images of a model."""

import numpy as np

Sides = int | None


def check_images(name: str, images: np.ndarray, shape: tuple[Sides, ...], levels: int) -> None:
    """Raise ValueError unless an array holds levels, from 0 on, of images of a shape.

    None in the shape stands for any number that is at least 1. Floats are refused even if whole,
    since images scaled to [0, 1] look like them.
    """
    images = np.asarray(images)
    fits = images.ndim == len(shape) and all(
        found == wanted or (wanted is None and found >= 1)
        for found, wanted in zip(images.shape, shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if side is None else str(side) for side in shape)
        raise ValueError(f"`{name}` must have the shape [{wanted}], got {list(images.shape)}.")
    if images.dtype.kind not in "iu":
        rule = f"whole numbers from 0 to {levels - 1:,} (uint8 or another integer type)"
        raise ValueError(f"`{name}` must be {rule}, got {images.dtype}.")
    low, high = int(images.min()), int(images.max())
    if low < 0 or high >= levels:
        raise ValueError(f"`{name}` must be in 0 to {levels - 1:,}, got {low:,} to {high:,}.")
