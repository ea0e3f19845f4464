"""Reduce, gather and broadcast with gradients, all based on one collective, the sum.

Each function takes a Replicator inside a step and a list of tensors. Gradients are derivatives of
the sum of all replicas' losses: with y = sum_r x_r and L = sum_r L_r(y), dL/dx_r = sum_s dL_s/dy.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import tensorflow as tf

from onepass.replicator.collectives import encoding

Tensors = list[tf.Tensor]
Map = Callable[[Tensors], Tensors]


class Replicas(Protocol):
    """The interface of a replicator that the primitives use inside a step."""

    num_replicas: int

    @property
    def replica_id(self) -> tf.Tensor:
        """Number of the replica that runs the step, int32 []."""

    def _sum(self, tensors: Tensors) -> Tensors:
        """Return the sum over replicas of each tensor."""

    def _record_call(self, primitive: str, tensors: Sequence[tf.Tensor]) -> None:
        """Record a collective call, so that the order of calls can be compared."""


Primitive = Callable[[Replicas, Tensors], Tensors]


def reducer(name: str) -> Primitive:
    """Return the reduction named sum, mean, min or max; raise ValueError for other names."""
    functions = {"sum": total, "mean": mean, "min": smallest, "max": largest}
    if name not in functions:
        raise ValueError(f"`reducer` must be sum, mean, min or max, got {name!r}.")
    return functions[name]


def total(replicator: Replicas, tensors: Tensors) -> Tensors:
    """Return sum_r x_r for each tensor; raise ValueError if a tensor is not numeric."""
    for tensor in tensors:
        if not encoding.is_number(tensor.dtype):
            raise ValueError(f"A sum needs numbers, got {tensor.dtype.name}.")
    return _by_kind(tensors, lambda some: _total(replicator, some))


def _total(replicator: Replicas, tensors: Tensors) -> Tensors:
    if replicator.num_replicas == 1:
        return [tf.identity(tensor) for tensor in tensors]

    @tf.custom_gradient
    def sum_tensors(*some: tf.Tensor) -> tuple[Tensors, Callable[..., Tensors]]:
        def backward(*upstream: tf.Tensor) -> Tensors:
            replicator._record_call("gradient of all_sum", upstream)
            return _total(replicator, list(upstream))

        return encoding.sum_as_numbers(list(some), replicator._sum), backward

    return list(sum_tensors(*tensors))


def mean(replicator: Replicas, tensors: Tensors) -> Tensors:
    """Return sum_r x_r / R for each tensor; raise ValueError for integers, bools and strings."""
    for tensor in tensors:
        if not (tensor.dtype.is_floating or tensor.dtype.is_complex):
            raise ValueError(f"A mean needs floating values, got {tensor.dtype.name}.")
    sums = total(replicator, tensors)
    if replicator.num_replicas == 1:
        return sums
    return [value / tf.cast(replicator.num_replicas, value.dtype) for value in sums]


def smallest(replicator: Replicas, tensors: Tensors) -> Tensors:
    """Return min_r x_r for each tensor; raise ValueError if its dtype has no order."""
    return _extreme(replicator, tensors, tf.reduce_min)


def largest(replicator: Replicas, tensors: Tensors) -> Tensors:
    """Return max_r x_r for each tensor; raise ValueError if its dtype has no order."""
    return _extreme(replicator, tensors, tf.reduce_max)


def _extreme(replicator: Replicas, tensors: Tensors, reduce: Callable[..., tf.Tensor]) -> Tensors:
    for tensor in tensors:
        if not encoding.is_ordered(tensor.dtype):
            raise ValueError(f"A minimum or maximum needs an order, {tensor.dtype.name} has none.")
    return [reduce(rows, axis=0) for rows in gather(replicator, tensors)]


def gather(replicator: Replicas, tensors: Tensors) -> Tensors:
    """Return [num_replicas, ...] for each tensor, whose row r is x_r."""
    if replicator.num_replicas == 1:
        return [tensor[tf.newaxis] for tensor in tensors]

    def backward(upstream: Tensors) -> Tensors:
        replicator._record_call("gradient of all_gather", upstream)
        return [rows[replicator.replica_id] for rows in _total(replicator, upstream)]

    def rows(tensor: tf.Tensor) -> tf.Tensor:
        return _own_row(tensor, replicator.replica_id, replicator.num_replicas)

    return _with_gradient(tensors, lambda some: _bits_summed(replicator, some, rows), backward)


def broadcast_from(source: int) -> Primitive:
    """Return a primitive that returns x_source on every replica."""

    def broadcast(replicator: Replicas, tensors: Tensors) -> Tensors:
        if replicator.num_replicas == 1:
            return [tf.identity(tensor) for tensor in tensors]
        is_source = tf.equal(replicator.replica_id, source)

        def own(tensor: tf.Tensor) -> tf.Tensor:
            return tf.where(is_source, tensor, tf.zeros_like(tensor))

        def backward(upstream: Tensors) -> Tensors:
            replicator._record_call(f"gradient of broadcast[{source}]", upstream)
            return [own(summed) for summed in _total(replicator, upstream)]

        return _with_gradient(tensors, lambda some: _bits_summed(replicator, some, own), backward)

    return broadcast


def _bits_summed(
    replicator: Replicas, tensors: Tensors, prepare: Callable[[tf.Tensor], tf.Tensor]
) -> Tensors:
    """Return exact sums over replicas of `prepare(bits)`, zero on all replicas but one."""
    strings = [tensor.dtype == tf.string for tensor in tensors]
    if any(strings):
        width = _longest(replicator, [t for t in tensors if t.dtype == tf.string])
        tensors = [encoding.to_bytes(t, width) if t.dtype == tf.string else t for t in tensors]
    summed = replicator._sum([prepare(encoding.to_bits(tensor)) for tensor in tensors])
    exchanged = [encoding.from_bits(s, t.dtype) for s, t in zip(summed, tensors, strict=True)]
    return [encoding.from_bytes(t) if s else t for t, s in zip(exchanged, strings, strict=True)]


def _longest(replicator: Replicas, strings: Tensors) -> tf.Tensor:
    own = tf.reduce_max(tf.stack([encoding.longest(tensor) for tensor in strings]))
    rows = _own_row(own, replicator.replica_id, replicator.num_replicas)
    return tf.reduce_max(replicator._sum([rows])[0])


def _own_row(tensor: tf.Tensor, replica_id: tf.Tensor, num_replicas: int) -> tf.Tensor:
    own = tf.reshape(tf.range(num_replicas) == replica_id, [num_replicas] + [1] * tensor.shape.rank)
    return tf.where(own, tensor[tf.newaxis], tf.zeros_like(tensor)[tf.newaxis])


def _with_gradient(tensors: Tensors, forward: Map, backward: Map) -> Tensors:
    @tf.custom_gradient
    def exchange_tensors(*some: tf.Tensor) -> tuple[Tensors, Callable[..., Tensors]]:
        return forward(list(some)), lambda *upstream: backward(list(upstream))

    return _by_kind(tensors, lambda some: list(exchange_tensors(*some)))


def _by_kind(tensors: Tensors, function: Map) -> Tensors:
    """Call `function` once for the tensors that have gradients and once for the others."""
    kinds = [t.dtype.is_floating or t.dtype.is_complex for t in tensors]
    results = {}
    for kind in (True, False):
        some = [t for t, its_kind in zip(tensors, kinds, strict=True) if its_kind == kind]
        results[kind] = iter(function(some) if some else [])
    return [next(results[kind]) for kind in kinds]
