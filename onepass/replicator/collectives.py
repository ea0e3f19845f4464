"""Reduce, gather and broadcast over replicas, for any dtype, in the same order on all replicas.

Each function takes a Replicator inside a step and a list of tensors. Gradients are derivatives of
the sum of all replicas' losses: with y = sum_r x_r and L = sum_r L_r(y), dL/dx_r = sum_s dL_s/dy. A
collective that only some replicas call would wait forever, so the calls of each replica are
recorded while its step is traced, and compared before anything runs.

Tensors are encoded as numbers, for sums, or as bits, for values that must arrive unchanged. int32
is not used: TensorFlow keeps it on the host, and mirrored strategies cannot reduce several at once.
A TPU sums int32 but not int64, so it sums the 64 bits in four limbs.
"""

import functools
import hashlib
import re
import threading
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.foundation.rules import UserError, must_be

_NEIGHBOURS = 3  # calls shown before and after the first difference
# TensorFlow's messages about different shapes, between workers and between a worker's devices.
_OTHER_SHAPES = (
    r"expected shape (\[.*?\]) but another member in the group expected shape (\[.*?\])",
    r"must have the same size and shape\.\s+Input 0: (\[.*?\]) != input \d+: (\[.*?\])",
)
_INTEGERS = (tf.bool, tf.int8, tf.int16, tf.int32, tf.uint8, tf.uint16, tf.uint32)
_WIDENED = {tf.float16: tf.float32, tf.bfloat16: tf.float32} | {
    dtype: tf.int64 for dtype in _INTEGERS
}
_SAME_BITS = {
    **dict.fromkeys((tf.float16, tf.bfloat16), tf.int16),
    **{tf.float32: tf.int32, tf.float64: tf.int64},
    **dict.fromkeys((tf.uint64, tf.complex64, tf.complex128), tf.int64),
}
# Byte b is encoded as b + 1; 0 marks the end of a string.
_CHARACTERS = [b"", *(bytes([byte]) for byte in range(256))]
Tensors = list[tf.Tensor]
Map = Callable[[Tensors], Tensors]


class CollectiveOrderError(UserError):
    """Replicas or workers call different collectives."""


def call_text(primitive: str, tensors: Iterable[tf.Tensor]) -> str:
    """Return a call with its tensors' dtypes and shapes as text, e.g. `all_sum(float32[2,3])`."""
    return f"{primitive}({', '.join(_spec(tensor) for tensor in tensors)})"


def _spec(tensor: tf.Tensor) -> str:
    if tensor.shape.rank is None:
        return f"{tensor.dtype.name}[...]"
    dims = ",".join("?" if dim is None else str(dim) for dim in tensor.shape)
    return f"{tensor.dtype.name}[{dims}]"


class CollectiveRecord:
    """A record of the collectives that this process's replicas call in one trace of a step."""

    def __init__(self) -> None:
        self._calls: dict[int, list[str]] = {}
        self._done: set[int] = set()
        self._lock = threading.Lock()

    def begin(self, replica: int) -> None:
        """Start the record of a replica."""
        with self._lock:
            self._calls[replica] = []

    def note(self, replica: int, call: str) -> None:
        """Append a call; raise CollectiveOrderError if it differs from another replica's."""
        with self._lock:
            self._calls[replica].append(call)
            self._compare(replica)

    def end(self, replica: int) -> None:
        """Complete a replica's record; raise CollectiveOrderError if another one has more calls."""
        with self._lock:
            self._done.add(replica)
            self._compare(replica)

    def _compare(self, replica: int) -> None:
        calls = self._calls[replica]
        for other, recorded in self._calls.items():
            last = min(len(calls), len(recorded)) - 1
            longer = other if len(recorded) > len(calls) else replica
            ended = len(calls) != len(recorded) and {replica, other} - {longer} <= self._done
            if ended or (last >= 0 and calls[last] != recorded[last]):
                raise CollectiveOrderError(
                    _difference(f"replica {other}", recorded, f"replica {replica}", calls)
                )

    def calls(self) -> list[str]:
        """Return the calls of a replica, which are the same for all replicas after `end`."""
        return next(iter(self._calls.values()), [])


def digest(calls: list[str]) -> tf.Tensor:
    """Return the SHA-256 of a list of calls as int32 [8]."""
    return tf.constant(np.frombuffer(hashlib.sha256("\n".join(calls).encode()).digest(), "<i4"))


def compare_workers(texts: list[str]) -> None:
    """Raise CollectiveOrderError unless the workers' calls, one per line of a text, are equal."""
    first = texts[0].splitlines()
    for worker, calls in enumerate(text.splitlines() for text in texts):
        if calls != first:
            raise CollectiveOrderError(_difference("worker 0", first, f"worker {worker}", calls))


def shape_mismatch_error(error: Exception) -> CollectiveOrderError | None:
    """Return a CollectiveOrderError if a step failed because dynamic shapes differ, else None."""
    for pattern in _OTHER_SHAPES:
        if found := re.search(pattern, str(error)):
            return CollectiveOrderError(
                f"Replicas must call the same primitives in the same order with the same shapes; "
                f"one gave a tensor of shape {found[1]}, another of shape {found[2]}."
            )
    return None


def _difference(who: str, calls: list[str], whom: str, others: list[str]) -> str:
    index = next(
        (k for k, pair in enumerate(zip(calls, others, strict=False)) if pair[0] != pair[1]),
        min(len(calls), len(others)),
    )
    return (
        f"Replicas must call the same primitives in the same order with the same shapes; call "
        f"{index + 1} of the step is {_at(calls, index)} on {who} and {_at(others, index)} on "
        f"{whom}. Order on {who}: {_around(calls, index)}; on {whom}: {_around(others, index)}."
    )


def _at(calls: list[str], index: int) -> str:
    return f"`{calls[index]}`" if index < len(calls) else "missing"


def _around(calls: list[str], index: int) -> str:
    first, last = max(index - _NEIGHBOURS, 0), index + _NEIGHBOURS + 1
    shown = ["..."] * (first > 0) + calls[first:last] + ["..."] * (last < len(calls))
    return ", ".join(shown) or "none"


def is_number(dtype: tf.DType) -> bool:
    """Return whether values of the dtype can be summed."""
    return dtype != tf.bool and (dtype in _WIDENED or dtype in _SAME_BITS or dtype == tf.int64)


def _to_numbers(tensor: tf.Tensor) -> tf.Tensor:
    if tensor.dtype.is_complex:
        return tf.stack([tf.math.real(tensor), tf.math.imag(tensor)])
    if tensor.dtype == tf.uint64:
        return tf.bitcast(tensor, tf.int64)
    return tf.cast(tensor, _WIDENED.get(tensor.dtype, tensor.dtype))


def _from_numbers(tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    if dtype.is_complex:
        return tf.complex(tensor[0], tensor[1])
    return tf.bitcast(tensor, dtype) if dtype == tf.uint64 else tf.cast(tensor, dtype)


def to_bits(tensor: tf.Tensor) -> tf.Tensor:
    """Return the bits of a tensor (not of strings) as int64, which a sum with zeros keeps."""
    if tensor.dtype in _SAME_BITS:
        tensor = tf.bitcast(tensor, _SAME_BITS[tensor.dtype])
    if tensor.dtype != tf.int64 and tensor.dtype not in _INTEGERS:
        raise ValueError(
            f"Tensors of type {tensor.dtype.name} cannot be exchanged between replicas."
        )
    return tf.cast(tensor, tf.int64)


def from_bits(tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Return the tensor that `to_bits` encoded, given its bits and dtype."""
    if dtype not in _SAME_BITS:
        return tf.cast(tensor, dtype)
    return tf.bitcast(tf.cast(tensor, _SAME_BITS[dtype]), dtype)


def to_limbs(tensor: tf.Tensor) -> tf.Tensor:
    """Split int64 [...] into int32 [..., 4] of 16 bits; up to 32,768 sum without overflow."""
    return tf.cast(tf.bitcast(tensor, tf.uint16), tf.int32)


def from_limbs(limbs: tf.Tensor) -> tf.Tensor:
    """Return int64 [...] from sums of limbs, int32 [..., 4], modulo 2^64."""
    shifts = tf.constant([0, 16, 32, 48], tf.int64)
    return tf.reduce_sum(tf.bitwise.left_shift(tf.cast(limbs, tf.int64), shifts), -1)


def longest(tensor: tf.Tensor) -> tf.Tensor:
    """Return the length in bytes of the longest string, at least 1, as int32 []."""
    return tf.maximum(tf.reduce_max(tf.strings.length(tensor)), 1)


def to_bytes(tensor: tf.Tensor, width: tf.Tensor) -> tf.Tensor:
    """Return strings [...] as int32 [..., width]: each byte plus 1, then zeros after the last."""
    data = tf.cast(tf.io.decode_raw(tensor, tf.uint8, fixed_length=width), tf.int32)
    inside = tf.range(width) < tf.strings.length(tensor)[..., tf.newaxis]
    return tf.where(inside, data + 1, 0)


def from_bytes(numbers: tf.Tensor) -> tf.Tensor:
    """Return the strings [...] that `to_bytes` encoded as int32 [..., width]."""
    return tf.strings.reduce_join(tf.gather(tf.constant(_CHARACTERS), numbers), axis=-1)


Replicas = Any  # a Replicator, whose module imports this one
Primitive = Callable[[Replicas, Tensors], Tensors]


def reducer(name: str) -> Primitive:
    """Return the reduction named sum, mean, min or max; raise ValueError for other names."""
    if name not in _REDUCERS:
        raise ValueError(must_be("reducer", "sum, mean, min or max", repr(name)))
    return _REDUCERS[name]


def total(replicator: Replicas, tensors: Tensors) -> Tensors:
    """Return sum_r x_r for each tensor; raise ValueError if a tensor is not numeric."""
    for tensor in tensors:
        if not is_number(tensor.dtype):
            raise ValueError(f"A sum needs numbers, got {tensor.dtype.name}.")
    if replicator.num_replicas == 1:
        return [tf.identity(tensor) for tensor in tensors]

    def forward(some: Tensors) -> Tensors:
        # Half precision is summed in float32 and rounded once; integers wrap.
        sums = replicator._sum([_to_numbers(tensor) for tensor in some])
        return [_from_numbers(s, t.dtype) for s, t in zip(sums, some, strict=True)]

    def backward(upstream: Tensors) -> Tensors:
        replicator._record_call("gradient of all_sum", upstream)
        return total(replicator, upstream)

    return _with_gradient(tensors, forward, backward)


def mean(replicator: Replicas, tensors: Tensors) -> Tensors:
    """Return sum_r x_r / R for each tensor; raise ValueError for integers, bools and strings."""
    for tensor in tensors:
        if not (tensor.dtype.is_floating or tensor.dtype.is_complex):
            raise ValueError(f"A mean needs floating values, got {tensor.dtype.name}.")
    count = replicator.num_replicas
    return [value / tf.cast(count, value.dtype) for value in total(replicator, tensors)]


def _extreme(replicator: Replicas, tensors: Tensors, reduce: Callable[..., tf.Tensor]) -> Tensors:
    for tensor in tensors:
        if not is_number(tensor.dtype) or tensor.dtype.is_complex:
            raise ValueError(f"A minimum or maximum needs an order, {tensor.dtype.name} has none.")
    return [reduce(rows, axis=0) for rows in gather(replicator, tensors)]


def gather(replicator: Replicas, tensors: Tensors) -> Tensors:
    """Return [num_replicas, ...] for each tensor, whose row r is x_r."""
    if replicator.num_replicas == 1:
        return [tensor[tf.newaxis] for tensor in tensors]

    def backward(upstream: Tensors) -> Tensors:
        replicator._record_call("gradient of all_gather", upstream)
        return [rows[replicator.replica_id] for rows in total(replicator, upstream)]

    def rows(tensor: tf.Tensor) -> tf.Tensor:
        return _own_row(tensor, replicator.replica_id, replicator.num_replicas)

    return _with_gradient(tensors, lambda some: _bits_summed(replicator, some, rows), backward)


_REDUCERS: dict[str, Primitive] = {
    **{"sum": total, "mean": mean},
    "min": functools.partial(_extreme, reduce=tf.reduce_min),
    "max": functools.partial(_extreme, reduce=tf.reduce_max),
}


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
            return [own(summed) for summed in total(replicator, upstream)]

        return _with_gradient(tensors, lambda some: _bits_summed(replicator, some, own), backward)

    return broadcast


def _bits_summed(
    replicator: Replicas, tensors: Tensors, prepare: Callable[[tf.Tensor], tf.Tensor]
) -> Tensors:
    """Return exact sums over replicas of `prepare(bits)`, zero on all replicas but one."""
    strings = [tensor.dtype == tf.string for tensor in tensors]
    if any(strings):
        own = tf.reduce_max([longest(t) for t in tensors if t.dtype == tf.string])
        rows = _own_row(own, replicator.replica_id, replicator.num_replicas)
        width = tf.reduce_max(replicator._sum([rows])[0])
        tensors = [to_bytes(t, width) if t.dtype == tf.string else t for t in tensors]
    summed = replicator._sum([prepare(to_bits(tensor)) for tensor in tensors])
    exchanged = [from_bits(s, t.dtype) for s, t in zip(summed, tensors, strict=True)]
    return [from_bytes(t) if s else t for t, s in zip(exchanged, strings, strict=True)]


def _own_row(tensor: tf.Tensor, replica_id: tf.Tensor, num_replicas: int) -> tf.Tensor:
    own = tf.reshape(tf.range(num_replicas) == replica_id, [num_replicas] + [1] * tensor.shape.rank)
    return tf.where(own, tensor[tf.newaxis], tf.zeros_like(tensor)[tf.newaxis])


def _with_gradient(tensors: Tensors, forward: Map, backward: Map) -> Tensors:
    @tf.custom_gradient
    def exchange_tensors(*some: tf.Tensor) -> tuple[Tensors, Callable[..., Tensors]]:
        return forward(list(some)), lambda *upstream: backward(list(upstream))

    return _by_kind(tensors, lambda some: list(exchange_tensors(*some)))


def _by_kind(tensors: Tensors, function: Map) -> Tensors:
    kinds = [t.dtype.is_floating or t.dtype.is_complex for t in tensors]
    results = {}
    for kind in (True, False):
        some = [t for t, its_kind in zip(tensors, kinds, strict=True) if its_kind == kind]
        results[kind] = iter(function(some) if some else [])
    return [next(results[kind]) for kind in kinds]
