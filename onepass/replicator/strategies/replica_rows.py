"""Select the rows of a global batch for each replica."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from onepass.foundation.errors import UserError

_UNEVEN = "number of rows is not a multiple of the number of replicas"


def check_divisible(element_spec: Any, num_replicas: int) -> None:
    """Raise UserError unless `num_replicas` divides the rows of each tensor, as far as known."""
    for spec in tf.nest.flatten(element_spec):
        if spec.shape.rank == 0:
            raise UserError("A global batch must have rows; a tensor of `dataset` is a scalar.")
        rows = spec.shape[0] if spec.shape.rank else None
        if rows is not None and rows % num_replicas:
            raise UserError(_uneven_rows_text(rows, num_replicas))


def _replica_rows(element_spec: Any, first: int, count: int, num_replicas: int) -> Callable:
    """Return a function for `dataset.map` that keeps the rows of `count` replicas.

    Every tensor [rows, ...] becomes [count, rows / num_replicas, ...], with the rows of the
    replicas first, ..., first + count - 1.
    """

    def rows_of_replicas(tensor: tf.Tensor) -> tf.Tensor:
        rows = tf.shape(tensor)[0]
        even = tf.debugging.assert_equal(rows % num_replicas, 0, message=_UNEVEN)
        with tf.control_dependencies([even] if even is not None else []):
            size = rows // num_replicas
        known = None if tensor.shape[0] is None else tensor.shape[0] // num_replicas
        replica_rows = tensor[first * size : (first + count) * size]
        replica_rows = tf.reshape(replica_rows, tf.concat([[count, size], tf.shape(tensor)[1:]], 0))
        return tf.ensure_shape(replica_rows, [count, known, *tensor.shape[1:]])

    if type(element_spec) is tuple:  # `map` passes a tuple as several arguments
        return lambda *batch: tf.nest.map_structure(rows_of_replicas, batch)
    return lambda batch: tf.nest.map_structure(rows_of_replicas, batch)


def replica_batches(
    dataset: tf.data.Dataset, first: int, count: int, num_replicas: int
) -> tf.data.Dataset:
    """Return a dataset of the batches of `count` replicas from a dataset of global batches.

    Its elements are the rows of replicas first, ..., first + count - 1, in turn. A batch whose rows
    are not a multiple of `num_replicas` is an error (`uneven_rows_error` explains it), and so is
    every later element: if the error were raised only once, it would reach one replica, while the
    others would get the next batch, or the end of the data, and could report that instead.
    """
    rows_of_replicas = _replica_rows(dataset.element_spec, first, count, num_replicas)
    if all(spec.shape[0] is not None for spec in tf.nest.flatten(dataset.element_spec)):
        return dataset.map(rows_of_replicas).unbatch()

    def replica_rows(*batch: Any) -> tf.data.Dataset:
        rows = tf.stack([tf.shape(tensor)[0] for tensor in tf.nest.flatten(batch)])
        is_even = tf.reduce_all(rows % num_replicas == 0)
        times = tf.where(is_even, tf.constant(1, tf.int64), -1)
        element = batch if type(dataset.element_spec) is tuple else batch[0]
        return tf.data.Dataset.from_tensors(element).repeat(times).map(rows_of_replicas).unbatch()

    return dataset.flat_map(replica_rows)


def uneven_rows_error(error: Exception, num_replicas: int) -> UserError | None:
    """Return a UserError for an error that `replica_batches` raised in a step, else None."""
    return UserError(_uneven_rows_text(None, num_replicas)) if _UNEVEN in str(error) else None


def _uneven_rows_text(rows: int | None, num_replicas: int) -> str:
    got = "" if rows is None else f", got {rows}"
    return f"The rows of a global batch must be a multiple of {num_replicas} replicas{got}."
