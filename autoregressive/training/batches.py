"""Batches of whatever the caller has: arrays, an iterable, `tf.data`, a function of the step."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from autoregressive.elements import check_elements
from likelihoods.codec import Codec
from replicator.runs.errors import UserError
from replicator.training.accumulation import Batch
from replicator.training.batches import as_dataset

KEYS = ("elements", "condition")


class Batches:
    """Batches from any step on, the same whenever they are asked for.

    Every batch has `step` and `row`, int32 [rows], which address noise for a loss that draws.

    Args:
      source: an array of elements [num, ...], of which every batch has rows drawn at random; a
        pair of elements and condition, or a dict of arrays with the key `elements`; an iterable
        of batches of any of these kinds, which is begun again when it ends; a `tf.data.Dataset` of
        them; or a function from the step to a batch.
      codec, rank: of the elements, which are checked.
      batch_size: rows drawn from arrays. seed: of the draw.
    Raises:
      ValueError: elements that are NaN, out of range or of another rank.
    """

    def __init__(self, source: Any, codec: Codec, rank: int, batch_size: int, seed: int):
        self._source, self._codec, self._rank = source, codec, rank
        self._rows, self._seed = batch_size, seed
        self._arrays: dict[str, np.ndarray] | None = None
        if isinstance(source, np.ndarray | tuple | dict) or tf.is_tensor(source):
            self._arrays = self._checked(source)
            counts = {len(array) for array in self._arrays.values()}
            if len(counts) > 1 or 0 in counts:
                raise ValueError(
                    f"arrays of a batch must have the same number of rows, got {sorted(counts)}."
                )

    def example(self) -> Batch:
        """Return the first batch, which an iterator still gives afterwards."""
        if isinstance(self._source, Iterator):
            first = next(self._source)
            self._source = itertools.chain([first], self._source)
            return next(self._numbered([first], 0))
        return next(iter(self.starting_at(0)))

    def starting_at(self, step: int) -> Iterable[Batch]:
        """Return the endless batches from a step on."""
        if self._arrays is not None:
            return as_dataset(self._drawn, step, rows=self._rows)
        if callable(self._source) and not isinstance(self._source, tf.data.Dataset):
            return self._numbered(map(self._source, itertools.count(step)), step)
        return self._numbered(itertools.islice(_endless(self._source), step, None), step)

    def dataset_from(self, step: int) -> tf.data.Dataset:
        """Return the batches from a step on as a `tf.data.Dataset`, which replicas share."""
        batches = self.starting_at(step)
        if isinstance(batches, tf.data.Dataset):
            return batches
        signature = {name: tf.TensorSpec(x.shape, x.dtype) for name, x in self.example().items()}
        return tf.data.Dataset.from_generator(lambda: batches, output_signature=signature)

    def _numbered(self, batches: Iterable, first: int) -> Iterator[Batch]:
        for step, batch in enumerate(batches, first):
            arrays = _addressed(self._checked(batch), step)
            yield {name: tf.constant(array) for name, array in arrays.items()}

    def _drawn(self, step: int) -> dict[str, np.ndarray]:
        arrays: dict[str, np.ndarray] = self._arrays or {}
        count = len(arrays["elements"])
        generator = np.random.default_rng([self._seed, step])
        rows = generator.choice(count, self._rows, replace=count < self._rows)
        return _addressed({name: array[rows] for name, array in arrays.items()}, step)

    def _checked(self, batch: Any) -> dict[str, np.ndarray]:
        if isinstance(batch, tuple | list):
            batch = dict(zip(KEYS, batch, strict=False))
        if not isinstance(batch, dict):
            batch = {"elements": batch}
        arrays = {name: np.asarray(array) for name, array in batch.items()}
        if "elements" not in arrays:
            raise ValueError(f"a batch must have the key `elements`, got {sorted(arrays)}.")
        check_elements(arrays["elements"], self._codec, self._rank)
        return arrays


def _addressed(arrays: dict[str, np.ndarray], step: int) -> dict[str, np.ndarray]:
    rows = len(arrays["elements"])
    address = {"step": np.full(rows, step, np.int32), "row": np.arange(rows, dtype=np.int32)}
    return address | arrays


def _endless(source: Iterable) -> Iterator:
    """Yield the items again and again."""
    while True:
        count = 0
        for item in source:
            count += 1
            yield item
        if not count or iter(source) is source:
            raise UserError(
                f"The batches ended after {count}; pass an iterable that can begin again, or a"
                " function of the step."
            )


BatchSource = np.ndarray | tuple | dict | Iterable | Callable[[int], Any]
