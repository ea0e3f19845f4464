"""Elements: their axes, their checks, and rows of different lengths."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.foundation.rules import check_unmasked, must_be
from onepass.foundation.runtime import check_eager
from onepass.likelihoods.codec import Codec, default_codec
from onepass.likelihoods.distribution import Distribution, is_of_tokens, pixel_channels


@dataclasses.dataclass(frozen=True)
class Layout:
    """The axes of a model's elements."""

    order: str
    whole_pixels: bool = False  # whether one symbol contains all channels of a pixel
    channels: int | None = None  # per time step of [batch, time, channels]; None: no such axis

    @property
    def rank(self) -> int:
        """Number of axes of the elements, including the batch axis."""
        return 4 if self.order != "time" else 2 if self.channels is None else 3

    @property
    def event(self) -> tuple[int, ...]:
        """Shape of the elements of one time step."""
        return () if self.channels is None else (self.channels,)

    @property
    def noise_axes(self) -> int:
        """Number of axes of the positions that have independent noise."""
        return self.rank - (2 if self.whole_pixels else 1)

    def shape(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of one row's elements, from (length,) or (height, width, channels)."""
        return (*sizes, *self.event)

    def split_channels(self, outputs: tf.Tensor) -> tf.Tensor:
        """Return outputs [batch, time, ...] with an axis for channels if elements have one."""
        if self.channels is None:
            return outputs
        sizes = tf.shape(outputs)[:2] if None in outputs.shape[:2] else outputs.shape[:2]
        each = outputs.shape[-1] // self.channels
        return tf.reshape(outputs, [*tf.unstack(sizes, 2), self.channels, each])

    def noise(
        self, distribution: Distribution, seed: int, num: int, shape: Sequence[int], start: int = 0
    ) -> tf.Tensor:
        """Return the noise of rows, [num, *positions, noise channels], from time step `start`."""
        positions = tuple(shape[: self.noise_axes])
        each = int(np.prod(self.event))
        noise = distribution.noise(seed, tf.range(num), start * each, int(np.prod(positions)))
        return tf.reshape(noise, [num, *positions, noise.shape[-1]])


def layout_of(
    distribution: Distribution, order: str, inputs: tf.TensorSpec | None = None
) -> Layout:
    """Return a model's layout; several entries of a third input axis are the elements' channels."""
    if order != "time":
        return Layout(order, pixel_channels(distribution) is not None)
    channels = 1 if inputs is None or inputs.shape.rank != 3 else inputs.shape[2]
    return Layout(order, channels=None if channels == 1 else channels)


def check_parts(network: Any, distribution: Any) -> None:
    """Raise ValueError unless the network is callable and the distribution has `log_prob`."""
    check_eager()
    if not callable(network):
        raise ValueError(f"`network` must be a module, a model or a function, got {network!r}.")
    if isinstance(distribution, type) or not hasattr(distribution, "log_prob"):
        rule = "a likelihood, such as likelihoods.Gaussian()"
        raise ValueError(must_be("distribution", rule, repr(distribution)))


def codec_for(distribution: Distribution, codec: Codec | None, order: str) -> Codec:
    """Return the codec of a model."""
    if codec is None:
        codec = default_codec(distribution.levels, order, is_of_tokens(distribution))
    if codec.levels != distribution.levels:
        own = f"`codec` must have the levels of the distribution, {distribution.levels}"
        raise ValueError(f"{own}, got {codec.levels}.")
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
        rule = f"in [{lowest:g}, {highest:g}] for {codec.levels} levels"
        raise ValueError(must_be(name, rule, f"{elements[where]} at {list(where)}"))


def encode_tokens(elements: np.ndarray, codec: Codec, name: str) -> tf.Tensor:
    """Return the symbols of single elements [n], int32 [n]."""
    check_elements(elements[np.newaxis], codec, Layout("time"), name)
    return codec.encode(tf.constant(elements))


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
        raise ValueError(must_be(name, "finite", f"{array[where]} at {list(where)}"))


def _first(mask: np.ndarray) -> tuple[int, ...]:
    return tuple(np.argwhere(mask)[0].tolist())


def filler(codec: Codec) -> np.ndarray:
    """Return a scalar element that the codec can encode, for padding the ends of rows."""
    symbol = 0.0 if codec.levels is None else codec.levels // 2
    with tf.init_scope():
        return np.asarray(codec.decode(tf.constant(symbol)))


def list_rows(values: Any, axes: int) -> list[np.ndarray] | None:
    """Return the rows of a list or ragged tensor as arrays; None for all else."""
    if not isinstance(values, list | tuple | tf.RaggedTensor):
        return None
    check_unmasked(values, "elements")
    try:
        rows = [np.asarray(row) for row in values]
    except ValueError:
        return None
    if not rows:
        return None
    is_row = all(row.ndim == axes and row.dtype != object for row in rows)
    return rows if is_row and len({row.shape[1:] for row in rows}) == 1 else None


def pad_rows(rows: Sequence[np.ndarray], length: int, fill: Any = 0) -> np.ndarray:
    """Return rows [n, ...] as one array [rows, length, ...], padded with `fill`."""
    dtype = np.result_type(*rows)
    array = np.full([len(rows), length, *rows[0].shape[1:]], np.asarray(fill).astype(dtype))
    for into, row in zip(array, rows, strict=True):
        into[: len(row)] = row
    return array


def checked_lengths(lengths: Any, rows: int, most: int) -> np.ndarray:
    """Return lengths as int32 [rows]; raise ValueError unless integers from 0 to `most`."""
    array = np.asarray(lengths)
    is_whole = array.dtype.kind in "iu" and array.shape == (rows,)
    if not is_whole or (array < 0).any() or (array > most).any():
        shown = array.tolist()[:8] if is_whole else f"{array.dtype} {list(array.shape)}"
        rule = f"{rows} integers from 0 to {most}, one per row"
        raise ValueError(must_be("lengths", rule, shown))
    return array.astype(np.int32)


def before_end(lengths: tf.Tensor, elements: tf.Tensor) -> tf.Tensor:
    """Return a mask of the elements before their row's end, bool [batch, time, 1, ...]."""
    is_real = tf.range(tf.shape(elements)[1]) < lengths[:, tf.newaxis]
    ones = [1] * (elements.shape.rank - 2)
    return tf.reshape(is_real, tf.concat([tf.shape(is_real), ones], 0)) if ones else is_real


def zero_after_end(lengths: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Return values [batch, time, ...] with zeros after each row's end."""
    return tf.where(before_end(lengths, values), values, tf.zeros_like(values))


def with_lengths(
    elements: Any, lengths: Any, codec: Codec, rank: int
) -> tuple[Any, tf.Tensor | None]:
    """Return elements [batch, time, ...] and their lengths, int32 [batch] or None.

    The lengths are None if none are given and all rows are equally long. Values after the end of a
    row are replaced, so they may be anything, such as NaN.
    """
    if rank == 4:
        if lengths is not None:
            raise ValueError("`lengths` needs a model in time order, got raster.")
        return elements, None
    if tf.is_tensor(elements) and not tf.executing_eagerly():
        if lengths is None:
            return elements, None
        known = tf.cast(lengths, tf.int32)
        fill = tf.cast(filler(codec), elements.dtype)
        return tf.where(before_end(known, elements), elements, fill), known
    rows = list_rows(elements, rank - 1)
    if lengths is None and (rows is None or len({len(row) for row in rows}) == 1):
        return elements, None
    if rows is not None and lengths is None:
        lengths = [len(row) for row in rows]
        elements = pad_rows(rows, max(*lengths, 1), filler(codec))
    array = as_array(elements, "elements")  # of another rank, a later check refuses it
    return (elements, None) if array.ndim != rank else fill_after_end(array, lengths, codec)


def fill_after_end(array: np.ndarray, lengths: Any, codec: Codec) -> tuple[np.ndarray, np.ndarray]:
    """Return elements [rows, time, ...] with filler after each row's end, and int32 lengths."""
    rows, time = array.shape[:2]
    known = checked_lengths(lengths, rows, time)
    is_real = np.arange(time) < known[:, np.newaxis]
    is_real = is_real.reshape([*is_real.shape, *[1] * (array.ndim - 2)])
    return np.where(is_real, array, filler(codec).astype(array.dtype)), known
