"""The rows of a global batch that belong to a replica."""

from collections.abc import Callable

import tensorflow as tf

from replicator.runs.errors import UserError

_UNEVEN = "rows that the replicas do not divide"


def check_divisible(element_spec, num_replicas: int) -> None:
    """Raises UserError where a known number of rows is not a multiple of the replicas."""
    for spec in tf.nest.flatten(element_spec):
        if spec.shape.rank == 0:
            raise UserError("A global batch must have rows; a tensor of `dataset` is a scalar.")
        rows = spec.shape[0] if spec.shape.rank else None
        if rows is not None and rows % num_replicas:
            raise UserError(_refusal(rows, num_replicas))


def _share_of(element_spec, first: int, count: int, num_replicas: int) -> Callable:
    """What a dataset of global batches is mapped with, to the shares of some of the replicas.

    They are replicas first, ..., first + count - 1; a tensor becomes [count, rows / R, ...].
    """

    def share(tensor):
        rows = tf.shape(tensor)[0]
        even = tf.debugging.assert_equal(rows % num_replicas, 0, message=_UNEVEN)
        with tf.control_dependencies([even] if even is not None else []):
            size = rows // num_replicas
        known = None if tensor.shape[0] is None else tensor.shape[0] // num_replicas
        shares = tensor[first * size : (first + count) * size]
        shares = tf.reshape(shares, tf.concat([[count, size], tf.shape(tensor)[1:]], 0))
        return tf.ensure_shape(shares, [count, known, *tensor.shape[1:]])

    if type(element_spec) is tuple:  # such a batch arrives as several arguments
        return lambda *batch: tf.nest.map_structure(share, batch)
    return lambda batch: tf.nest.map_structure(share, batch)


def shares_of(dataset: tf.data.Dataset, first: int, count: int, num_replicas: int):
    """The shares of some of the replicas, one after another, of a dataset of global batches.

    They are replicas first, ..., first + count - 1. From a batch of rows that the replicas do
    not divide, every further element is the error that `uneven` knows: were it given once, the
    replicas that ask later would find the next batch, or the end, and their error could hide it.
    """
    share = _share_of(dataset.element_spec, first, count, num_replicas)
    if all(spec.shape[0] is not None for spec in tf.nest.flatten(dataset.element_spec)):
        return dataset.map(share).unbatch()

    def shares(*batch):
        rows = tf.stack([tf.shape(tensor)[0] for tensor in tf.nest.flatten(batch)])
        is_even = tf.reduce_all(rows % num_replicas == 0)
        times = tf.where(is_even, tf.constant(1, tf.int64), -1)
        element = batch if type(dataset.element_spec) is tuple else batch[0]
        return tf.data.Dataset.from_tensors(element).repeat(times).map(share).unbatch()

    return dataset.flat_map(shares)


def uneven(error: Exception, num_replicas: int) -> UserError | None:
    """The refusal of `shares_of`, where that is what a step failed with."""
    return UserError(_refusal(None, num_replicas)) if _UNEVEN in str(error) else None


def _refusal(rows: int | None, num_replicas: int) -> str:
    found = "" if rows is None else f", got {rows}"
    return f"The rows of a global batch must be a multiple of {num_replicas} replicas{found}."
