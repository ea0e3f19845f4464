"""A batch in parts: what each must know of the whole, and their gradients one after another."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import tensorflow as tf

Batch = dict[str, tf.Tensor]


@runtime_checkable
class LossOfShares(Protocol):
    """A loss that is no plain mean over rows, and says what a share of the rows lacks."""

    def common(self, batch: Batch, replicator) -> Batch:
        """What the batches of all shares have in common, to be added to one of them.

        Called before the loss, where there is more than one share. With it the mean of the losses
        of all shares is the loss of the whole batch, and so are the gradients.

        Args:
          batch: one share.
          replicator: has `num_replicas` and `replica_id`, of the shares, and the primitives
            `all_reduce` (the mean alone) and `all_gather`.
        """


def prepared(loss_fn: Callable, batch: Batch, parts: int, replicator=None) -> Batch:
    """A replica's batch with what the loss must know of the whole, cut into parts.

    Args:
      loss_fn: of one part; perhaps a LossOfShares.
      batch: tensors [rows, ...].
      parts: how many; with more than one every tensor gets a leading axis [parts, rows / parts].
      replicator: that is in a step; None where there is but one replica.

    Raises ValueError where the rows are no multiple of the parts.
    """
    replicator = _Alone() if replicator is None else replicator
    shares = [batch] if parts == 1 else _cut(batch, parts)
    if replicator.num_replicas * parts > 1 and isinstance(loss_fn, LossOfShares):
        whole = _Whole(replicator, parts)
        known = whole.common(loss_fn, shares)
        shares = [{**share, **more} for share, more in zip(shares, known, strict=True)]
    if parts == 1:
        return shares[0]
    return {name: tf.stack([share[name] for share in shares]) for name in shares[0]}


def accumulated(gradients: Callable[[Batch], Any], batch: Batch, parts: int):
    """The mean of `gradients` over the parts of a `prepared` batch, one after another.

    gradients: from a part to a nest of floating tensors; only one part's activations are in memory.
    """

    def of(number):
        return gradients({name: value[number] for name, value in batch.items()})

    def add(number, so_far):
        return number + 1, tf.nest.map_structure(tf.add, so_far, of(number))

    first = tf.nest.map_structure(tf.convert_to_tensor, of(0))
    loop = (tf.constant(1), first)
    _, total = tf.while_loop(lambda i, _: i < parts, add, loop, parallel_iterations=1)
    return tf.nest.map_structure(lambda value: value / parts, total)


def _cut(batch: Batch, parts: int) -> list[Batch]:
    for name, value in batch.items():
        if value.shape[0] is not None and value.shape[0] % parts:
            raise ValueError(
                f"`{name}` must have a multiple of {parts} rows, the parts of a batch, "
                f"got {value.shape[0]}."
            )
    cut = {name: tf.split(value, parts) for name, value in batch.items()}
    return [{name: values[i] for name, values in cut.items()} for i in range(parts)]


class _Alone:
    """The primitives of one replica."""

    num_replicas, replica_id = 1, 0

    @staticmethod
    def all_reduce(value, _):
        return value

    @staticmethod
    def all_gather(value):
        return tf.nest.map_structure(lambda tensor: tensor[tf.newaxis], value)


class _Whole:
    """The primitives for parts of replicas' batches, each part being a share.

    Parts are asked one after another, so they are asked twice: what they tell in the first round,
    where the answers mean nothing, is put together for the second.
    """

    def __init__(self, replicator, parts: int):
        self._replicator, self._parts = replicator, parts
        self.num_replicas = replicator.num_replicas * parts
        self._told: list[list] = [[] for _ in range(parts)]
        self._answers: list = []
        self._part = self._calls = 0

    @property
    def replica_id(self):
        """Which share of all is asked."""
        return self._replicator.replica_id * self._parts + self._part

    def common(self, loss_fn: LossOfShares, shares: list[Batch]) -> list[Batch]:
        """What `loss_fn.common` gives for every share of this replica."""
        if self._parts == 1:
            return [loss_fn.common(shares[0], self._replicator)]
        self._round(loss_fn, shares)
        for calls in zip(*self._told, strict=True):
            reduce = calls[0][0]
            stacked = tf.nest.map_structure(lambda *each: tf.stack(each), *[v for _, v in calls])
            self._answers.append(reduce(stacked))
        return self._round(loss_fn, shares)

    def _round(self, loss_fn: LossOfShares, shares: list[Batch]) -> list[Batch]:
        given = []
        for self._part, share in enumerate(shares):
            self._calls = 0
            given.append(loss_fn.common(share, self))
        return given

    def all_reduce(self, value, reducer: str):
        """The mean over all shares."""
        if reducer != "mean":
            raise ValueError(f"`reducer` must be mean where a batch has parts, got {reducer!r}.")
        return self._answered(value, self._mean, lambda tensor: tensor)

    def all_gather(self, value):
        """[shares, ...], of all shares."""
        return self._answered(
            value, self._gathered, lambda tensor: tf.stack([tensor] * self.num_replicas)
        )

    def _answered(self, value, reduce: Callable, stand_in: Callable):
        self._calls += 1
        if self._answers:
            # A nest of its own, for whoever adds to it.
            return tf.nest.map_structure(tf.identity, self._answers[self._calls - 1])
        self._told[self._part].append((reduce, value))
        return tf.nest.map_structure(stand_in, value)

    def _mean(self, stacked):
        means = tf.nest.map_structure(lambda tensor: tf.reduce_mean(tensor, 0), stacked)
        return self._replicator.all_reduce(means, "mean")

    def _gathered(self, stacked):
        def flat(tensor):
            return tf.reshape(tensor, [self.num_replicas, *tensor.shape[2:]])

        return tf.nest.map_structure(flat, self._replicator.all_gather(stacked))
