"""Checks of data before anything is computed from it."""

import numpy as np

from likelihoods.codec import Codec


def check_elements(elements: np.ndarray, codec: Codec, rank: int) -> None:
    """Raise ValueError for data that the codec would silently change.

    Args:
      elements: integers or floats.
      codec: that will encode them.
      rank: 2 for [batch, time], 4 for [batch, height, width, channels].
    """
    axes = "[batch, time]" if rank == 2 else "[batch, height, width, channels]"
    if elements.ndim != rank:
        raise ValueError(f"`elements` must be {axes}, got shape {list(elements.shape)}.")
    check_finite(elements, "elements")
    if codec.levels is None:
        return
    lowest, highest = (np.asarray(codec.decode(np.int32(s))) for s in (0, codec.levels - 1))
    # Rounded elements may be slightly out of range.
    slack = 1e-6 * (highest - lowest) if elements.dtype.kind == "f" else 0
    outside = (elements < lowest - slack) | (elements > highest + slack)
    if outside.any():
        where = _first(outside)
        raise ValueError(
            f"`elements` must be in [{lowest:g}, {highest:g}] for {codec.levels} levels, got"
            f" {elements[where]} at {list(where)}."
        )


def check_finite(array: np.ndarray, name: str) -> None:
    """Raise ValueError for an array with NaN or a value that is infinite in float32.

    Args:
      array: integers or floats.
      name: for the message.
    """
    if array.dtype.kind not in "iuf":
        raise ValueError(f"`{name}` must be numbers, got {array.dtype}.")
    if array.dtype.kind != "f":
        return
    with np.errstate(over="ignore"):
        finite = np.isfinite(array.astype(np.float32, copy=False))
    if not finite.all():
        where = _first(~finite)
        raise ValueError(f"`{name}` must be finite, got {array[where]} at {list(where)}.")


def _first(mask: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(np.argmax(mask), mask.shape))
