"""Associative scans over time, run in order while a network is traced.

`tfp.math.scan_associative` halves the sequence again and again: for a length that is not known it
traces 48 levels, which takes a minute, and every known length has other operations. In order, it is
a loop with one state, which a step continues.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

MODULE = "tensorflow_probability.python.math"
NAME = "scan_associative"


@contextlib.contextmanager
def scans_in_order(length: int | None) -> Iterator[None]:
    """Let associative scans of this length, or an unknown one, run in order inside the block."""
    module = sys.modules.get(MODULE)  # a network can only call it if it is imported
    halving = getattr(module, NAME, None)
    if module is None or halving is None:
        yield
        return

    def scan(
        fn: Callable[[Any, Any], Any],
        elems: Any,
        max_num_levels: int = 48,
        axis: int = 0,
        validate_args: bool = False,
        name: str | None = None,
    ) -> Any:
        first = tf.convert_to_tensor(tf.nest.flatten(elems)[0])
        if first.shape.rank is None or first.shape[axis] not in (None, length):
            return halving(fn, elems, max_num_levels, axis, validate_args, name)
        return in_order(fn, elems, axis)

    setattr(module, NAME, scan)
    try:
        yield
    finally:
        setattr(module, NAME, halving)


def in_order(fn: Callable[[Any, Any], Any], elems: Any, axis: int) -> Any:
    """Return the scan of an associative function of two structures like `elems`, along `axis`."""
    flat = [tf.convert_to_tensor(each) for each in tf.nest.flatten(elems)]
    axes = [axis % each.shape.rank for each in flat]
    rows = [_move_axis(each, at, 0) for each, at in zip(flat, axes, strict=True)]

    def pack_elements(values: list[tf.Tensor]) -> Any:
        one = [tf.expand_dims(x, at) for x, at in zip(values, axes, strict=True)]
        return tf.nest.pack_sequence_as(elems, one)

    def step(before: tuple, row: list[tf.Tensor]) -> tuple:
        has_begun, total = before
        made = tf.nest.flatten(fn(pack_elements(total), pack_elements(row)))
        made = [tf.squeeze(x, at) for x, at in zip(made, axes, strict=True)]
        pairs = zip(made, row, strict=True)
        return tf.ones_like(has_begun), [tf.where(has_begun, x, y) for x, y in pairs]

    # There is no neutral element: the first total is the first row.
    first = tf.constant(False), [tf.ones_like(each[0]) for each in rows]
    _, totals = tf.scan(step, rows, initializer=first)
    made = [_move_axis(x, 0, at) for x, at in zip(totals, axes, strict=True)]
    for each, like in zip(made, flat, strict=True):
        each.set_shape(like.shape)
    return tf.nest.pack_sequence_as(elems, made)


def _move_axis(values: tf.Tensor, source: int, target: int) -> tf.Tensor:
    order = [axis for axis in range(values.shape.rank) if axis != source]
    order.insert(target, source)
    return tf.transpose(values, order)
