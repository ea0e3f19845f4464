"""Check models' parts and data before anything is computed."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.foundation.arguments import check_unmasked
from onepass.foundation.tensorflow_state import check_eager
from onepass.likelihoods.capabilities import is_of_tokens
from onepass.likelihoods.codec import Codec, default_codec
from onepass.likelihoods.distribution import Distribution
from onepass.networks.layout import Layout


def check_parts(network: Any, distribution: Any) -> None:
    """Raise ValueError unless the network is callable and the distribution has `log_prob`.

    Raise UserError where no model can be made: inside a `tf.function`, for example.
    """
    check_eager()
    if not callable(network):
        raise ValueError(f"`network` must be a module, a model or a function, got {network!r}.")
    if isinstance(distribution, type) or not hasattr(distribution, "log_prob"):
        raise ValueError(
            f"`distribution` must be a likelihood, such as likelihoods.Gaussian(), got"
            f" {distribution!r}."
        )


def codec_for(distribution: Distribution, codec: Codec | None, order: str) -> Codec:
    """Return the codec of a model."""
    if codec is None:
        codec = default_codec(distribution.levels, order, is_of_tokens(distribution))
    if codec.levels != distribution.levels:
        raise ValueError(
            f"`codec` must have the levels of the distribution, {distribution.levels}, got"
            f" {codec.levels}."
        )
    return codec


def as_array(values: Any, name: str) -> np.ndarray:
    """Convert numbers to an array; raise ValueError for ragged rows, masks and other types."""
    check_unmasked(values, name)
    try:
        ragged = isinstance(values, tf.RaggedTensor)
        array = np.asarray(values.to_list() if ragged else values)
    except ValueError:
        array = np.asarray(None)
    if array.dtype == object:
        raise ValueError(
            f"`{name}` must be an array of numbers with rows of one length; pass rows of different"
            " lengths one by one."
        )
    return array


def check_elements(
    elements: np.ndarray, codec: Codec, layout: Layout, name: str = "elements"
) -> None:
    """Raise ValueError for elements of a wrong shape, or that the codec would silently change."""
    axes = {2: "[batch, time]", 3: f"[batch, time, {layout.channels}]"}.get(layout.rank)
    axes = axes or "[batch, height, width, channels]"
    if elements.ndim != layout.rank or (layout.event and elements.shape[2:] != layout.event):
        raise ValueError(f"`{name}` must be {axes}, got shape {list(elements.shape)}.")
    if not all(elements.shape[1:]):
        raise ValueError(f"`{name}` must not be empty, got shape {list(elements.shape)}.")
    check_finite(elements, name)
    if codec.levels is None:
        return
    lowest, highest = (np.asarray(codec.decode(np.int32(s))) for s in (0, codec.levels - 1))
    if elements.dtype.kind == "f" and lowest.dtype.kind in "iu":
        raise ValueError(
            f"`{name}` must be integers in [{lowest}, {highest}], got {elements.dtype}; a model of"
            f" numbers in [-1, 1] needs codec=onepass.likelihoods.Linear({codec.levels}), or"
            f" MuLaw({codec.levels})."
        )
    # Rounded elements may be slightly out of range.
    slack = 1e-6 * (highest - lowest) if elements.dtype.kind == "f" else 0
    outside = (elements < lowest - slack) | (elements > highest + slack)
    if outside.any():
        where = _first(outside)
        raise ValueError(
            f"`{name}` must be in [{lowest:g}, {highest:g}] for {codec.levels} levels, got"
            f" {elements[where]} at {list(where)}."
        )


def encode_tokens(elements: np.ndarray, codec: Codec, name: str) -> tf.Tensor:
    """Return the symbols of single elements [n], int32 [n]."""
    check_elements(elements[np.newaxis], codec, Layout("time"), name)
    return codec.encode(tf.constant(elements))


def as_condition(
    given: Any, spec: tf.TensorSpec | None, order: str, sizes: Sequence[int | None] = ()
) -> Any:
    """Return a condition as a tensor, conditions by name as tensors, or None."""
    if isinstance(given, dict):
        return {name: tf.convert_to_tensor(value) for name, value in given.items()}
    tensor = None if given is None else tf.convert_to_tensor(given)
    if order != "time":
        return tensor
    if spec is None and tensor is not None:
        raise ValueError("`condition` must be None: the network reads none.")
    if spec is None:
        return None
    if tensor is not None and tensor.shape.rank == spec.shape.rank + 1 and tensor.shape[-1] == 1:
        tensor = tensor[..., 0]
    wanted = tf.TensorShape([*sizes, *spec.shape[len(sizes) :]]).merge_with(spec.shape)
    if tensor is None or not wanted.is_compatible_with(tensor.shape):
        given = None if tensor is None else tensor.shape
        raise ValueError(f"`condition` must be given, {wanted}, got {given}.")
    return tensor


def check_finite(array: np.ndarray, name: str) -> None:
    """Raise ValueError unless an array contains only numbers that are finite in float32."""
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
