"""Checks of data before anything is computed from it."""

from typing import Any

import numpy as np
import tensorflow as tf

from likelihoods.codec import Codec, Integers, Linear, Reals
from likelihoods.distribution import Distribution


def check_parts(network: Any, distribution: Any) -> None:
    """Raise ValueError unless a network can be called and a distribution is one."""
    if not callable(network):
        raise ValueError(f"`network` must be a module, a model or a function, got {network!r}.")
    if isinstance(distribution, type) or not hasattr(distribution, "log_prob"):
        raise ValueError(
            f"`distribution` must be a likelihood, such as likelihoods.Gaussian(), got"
            f" {distribution!r}."
        )


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


def as_condition(given: Any, spec: tf.TensorSpec | None, order: str) -> Any:
    """Return a condition as a tensor, or a dict of conditions as tensors; None: there is none.

    Args:
      given: array, dict of arrays, or None.
      spec: of the condition of a network in time order.
      order: "time" or "raster".

    Raises:
      ValueError: it is missing, or the network in time order has another one, or none.
    """
    if isinstance(given, dict):
        return {name: tf.convert_to_tensor(value) for name, value in given.items()}
    tensor = None if given is None else tf.convert_to_tensor(given)
    if order != "time":
        return tensor
    if spec is None and tensor is not None:
        raise ValueError("`condition` must be None: the network reads none.")
    if spec is not None and (tensor is None or not spec.shape.is_compatible_with(tensor.shape)):
        given = None if tensor is None else tensor.shape
        raise ValueError(f"`condition` must be given, {spec.shape}, got {given}.")
    return tensor


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


def default_codec(distribution: Distribution, order: str) -> Codec:
    """Return the codec of a model for which none is given; see `Autoregressive`."""
    if distribution.levels is None:
        return Reals()
    return (Linear if order == "time" else Integers)(distribution.levels)
