"""Pad rows of different lengths to form one array, and keep their lengths."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.foundation.arguments import check_unmasked
from onepass.likelihoods.codec import Codec
from onepass.networks.elements import as_array


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
        shown = f"{array.dtype} {list(array.shape)}" if not is_whole else array.tolist()[:8]
        raise ValueError(
            f"`lengths` must be {rows} integers from 0 to {most}, one per row, got {shown}."
        )
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
    array = as_array(elements, "elements")
    if array.ndim != rank:  # a later check raises the error
        return elements, None
    return fill_after_end(array, lengths, codec)


def fill_after_end(array: np.ndarray, lengths: Any, codec: Codec) -> tuple[np.ndarray, np.ndarray]:
    """Return elements [rows, time, ...] with filler after each row's end, and int32 lengths."""
    known = checked_lengths(lengths, *array.shape[:2])
    is_real = np.arange(array.shape[1]) < known[:, np.newaxis]
    is_real = is_real.reshape([*is_real.shape, *[1] * (array.ndim - 2)])
    return np.where(is_real, array, filler(codec).astype(array.dtype)), known
