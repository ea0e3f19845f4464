"""Recompute layers' intermediate results for the gradient instead of storing them.

Only a layer's inputs are stored; the backward pass computes the layer again (Chen et al. 2016,
"Training Deep Nets with Sublinear Memory Cost", arXiv 1604.06174).
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

_wanted = contextvars.ContextVar("rematerialised", default=False)


@contextlib.contextmanager
def rematerialising(wanted: bool) -> Iterator[None]:
    """Switch `call_rematerialised` on or off inside the block."""
    token = _wanted.set(wanted)
    try:
        yield
    finally:
        _wanted.reset(token)


def call_rematerialised(layer: Callable[..., Any], *inputs: Any) -> Any:
    """Call a pure layer, storing only its inputs in `rematerialising(True)`."""
    if not _wanted.get():
        return layer(*inputs)
    leaves = tf.nest.flatten(inputs)
    outputs: list[Any] = []

    def flat(*tensors: tf.Tensor) -> list[tf.Tensor]:
        given = iter(tensors)
        known = [None if leaf is None else next(given) for leaf in leaves]
        outputs[:] = [layer(*tf.nest.pack_sequence_as(inputs, known))]
        return tf.nest.flatten(outputs[0])

    found = tf.recompute_grad(flat)(*[leaf for leaf in leaves if leaf is not None])
    return tf.nest.pack_sequence_as(outputs[0], found)
