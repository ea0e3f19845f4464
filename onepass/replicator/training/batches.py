"""Batches: pipelines of those that NumPy computes, and microbatches, in memory one at a time."""

from collections.abc import Callable, Collection
from typing import Any, Protocol, runtime_checkable

import numpy as np
import tensorflow as tf

from onepass.foundation.rules import must_be

Batch = dict[str, tf.Tensor]
PARALLEL_BATCHES = 2
BATCHES_AHEAD = 4
ENDLESS = np.iinfo(np.int64).max


@runtime_checkable
class GlobalBatchLoss(Protocol):
    """A loss that is no plain mean over rows, such as one that divides by unpadded samples."""

    def global_inputs(self, batch: Batch, replicator: Any) -> Batch:
        """Return values of the global batch, by name, to add to the input of the loss.

        This is called with each microbatch, before the loss, if the batch is split among replicas
        or microbatches. With its result, the mean of the losses over all microbatches must be the
        loss of the global batch, and likewise the gradients. `replicator` counts microbatches and
        has the primitives `all_reduce` (only the mean) and `all_gather` over them.
        """


def split_microbatches(
    loss_fn: Callable, batch: Batch, num_microbatches: int, replicator: Any = None
) -> Batch:
    """Return a batch with the loss's global values, as [num_microbatches, ...] if more than one."""
    replicator = _SingleReplica() if replicator is None else replicator
    microbatches = [batch] if num_microbatches == 1 else _split_rows(batch, num_microbatches)
    if replicator.num_replicas * num_microbatches > 1 and isinstance(loss_fn, GlobalBatchLoss):
        collectives = _MicrobatchCollectives(replicator, num_microbatches)
        shared = collectives.global_inputs(loss_fn, microbatches)
        microbatches = [{**own, **more} for own, more in zip(microbatches, shared, strict=True)]
    if num_microbatches == 1:
        return microbatches[0]
    return {name: tf.stack([each[name] for each in microbatches]) for name in microbatches[0]}


def accumulate_gradients(
    gradients: Callable[[Batch], Any], batch: Batch, num_microbatches: int
) -> Any:
    """Return the mean of `gradients` over microbatches, [num_microbatches, rows, ...] each."""

    def gradients_of(number: int | tf.Tensor) -> Any:
        return gradients({name: value[number] for name, value in batch.items()})

    def add(number: tf.Tensor, total_so_far: Any) -> tuple[tf.Tensor, Any]:
        return number + 1, tf.nest.map_structure(tf.add, total_so_far, gradients_of(number))

    loop = (tf.constant(1), tf.nest.map_structure(tf.convert_to_tensor, gradients_of(0)))
    _, total = tf.while_loop(lambda i, _: i < num_microbatches, add, loop, parallel_iterations=1)
    return tf.nest.map_structure(lambda value: value / num_microbatches, total)


def _split_rows(batch: Batch, num_microbatches: int) -> list[Batch]:
    for name, value in batch.items():
        if value.shape[0] is not None and value.shape[0] % num_microbatches:
            raise ValueError(
                f"`{name}` must have a multiple of {num_microbatches} rows, the microbatches, "
                f"got {value.shape[0]}."
            )
    pieces = {name: tf.split(value, num_microbatches) for name, value in batch.items()}
    return [{name: values[i] for name, values in pieces.items()} for i in range(num_microbatches)]


class _SingleReplica:
    num_replicas, replica_id = 1, 0

    @staticmethod
    def all_reduce(value: Any, _: str) -> Any:
        return value

    @staticmethod
    def all_gather(value: Any) -> Any:
        return tf.nest.map_structure(lambda tensor: tensor[tf.newaxis], value)


class _MicrobatchCollectives:
    """The primitives over the microbatches of all replicas.

    A replica's microbatches are traced in turn, so none can wait for the next. `global_inputs` is
    called once more for every collective in it: each round records the arguments of the first one
    without a result, which may depend on earlier results.
    """

    def __init__(self, replicator: Any, num_microbatches: int):
        self._replicator, self._num_microbatches = replicator, num_microbatches
        self.num_replicas = replicator.num_replicas * num_microbatches
        self._recorded: list[tuple] = []
        self._results: list = []
        self._index = self._calls = 0

    @property
    def replica_id(self) -> int | tf.Tensor:
        return self._replicator.replica_id * self._num_microbatches + self._index

    def global_inputs(self, loss_fn: GlobalBatchLoss, microbatches: list[Batch]) -> list[Batch]:
        if self._num_microbatches == 1:
            return [loss_fn.global_inputs(microbatches[0], self._replicator)]
        while True:
            inputs, self._recorded = [], []
            for self._index, microbatch in enumerate(microbatches):
                self._calls = 0
                inputs.append(loss_fn.global_inputs(microbatch, self))
            if not self._recorded:
                return inputs
            reduce, values = self._recorded[0][0], [value for _, value in self._recorded]
            stacked = tf.nest.map_structure(lambda *each: tf.stack(each), *values)
            self._results.append(reduce(stacked))

    def all_reduce(self, value: Any, reducer: str) -> Any:
        if reducer != "mean":
            raise ValueError(must_be("reducer", "mean over microbatches", repr(reducer)))

        def mean(stacked: Any) -> Any:
            means = tf.nest.map_structure(lambda tensor: tf.reduce_mean(tensor, 0), stacked)
            return self._replicator.all_reduce(means, "mean")

        return self._exchange_value(value, mean, lambda tensor: tensor)

    def all_gather(self, value: Any) -> Any:
        def gather(stacked: Any) -> Any:
            return tf.nest.map_structure(
                lambda tensor: tf.reshape(tensor, [self.num_replicas, *tensor.shape[2:]]),
                self._replicator.all_gather(stacked),
            )

        return self._exchange_value(value, gather, lambda x: tf.stack([x] * self.num_replicas))

    def _exchange_value(self, value: Any, reduce: Callable, placeholder: Callable) -> Any:
        number, self._calls = self._calls, self._calls + 1
        if number < len(self._results):
            # A copy, because the caller may add keys to the nest.
            return tf.nest.map_structure(tf.identity, self._results[number])
        if number == len(self._results):
            self._recorded.append((reduce, value))
        return tf.nest.map_structure(placeholder, value)


def as_dataset(
    make: Callable[[int], dict[str, np.ndarray]],
    first: int,
    stop: int = ENDLESS,
    rows: int | None = None,
    then: Callable[[Batch], Batch] | None = None,
    free: Collection[str] = (),
) -> tf.data.Dataset:
    """Return make(first), ..., make(stop - 1) as a dataset of dicts of tensors.

    All batches have equal keys, dtypes and shapes, except for the number of rows and the second
    axis of the `free` arrays.
    """
    if first < 0:
        raise ValueError(must_be("start_step", "at least 0", first))
    example = make(first)
    shapes = {
        name: [rows, *([None] if name in free else x.shape[1:2]), *x.shape[2:]]
        for name, x in example.items()
    }

    def values(step: np.int64) -> list[np.ndarray]:
        arrays = make(int(step))
        return [arrays[name] for name in example]

    def tensors(step: tf.Tensor) -> Batch:
        flat = tf.numpy_function(values, [step], [array.dtype for array in example.values()])
        # `tf.numpy_function` returns no static shapes.
        batch = {
            name: tf.ensure_shape(tensor, shapes[name])
            for name, tensor in zip(example, flat, strict=True)
        }
        return batch if then is None else then(batch)

    steps = tf.data.Dataset.range(first, stop)
    batches = steps.map(tensors, num_parallel_calls=PARALLEL_BATCHES, deterministic=True)
    return batches.prefetch(BATCHES_AHEAD)
