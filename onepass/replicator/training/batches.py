"""Turn batches that NumPy computes for each step into a tf.data pipeline."""

from collections.abc import Callable, Collection

import numpy as np
import tensorflow as tf

from onepass.replicator.training.accumulation import Batch

PARALLEL_BATCHES = 2
BATCHES_AHEAD = 4
ENDLESS = np.iinfo(np.int64).max


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
        raise ValueError(f"`start_step` must be at least 0, got {first}.")
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
