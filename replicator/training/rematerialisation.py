"""Layers whose insides are computed again for the gradient instead of kept.

Of a layer only its inputs are kept; the backward pass computes the layer once more (Chen et al.
2016, "Training Deep Nets with Sublinear Memory Cost", arXiv 1604.06174).
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

_wanted = contextvars.ContextVar("rematerialised", default=False)


@contextlib.contextmanager
def rematerialising(wanted: bool) -> Iterator[None]:
    """A context in which `recomputed` does so, or does not."""
    token = _wanted.set(wanted)
    try:
        yield
    finally:
        _wanted.reset(token)


def recomputed(layer: Callable, *inputs: Any):
    """What the layer gives; within `rematerialising(True)` its insides are not kept for a gradient.

    Args:
      layer: a pure function to a nest of floating tensors. Variables apart, no gradient reaches
        what it reads beside its inputs.
      inputs: nests of floating tensors and None.
    """
    if not _wanted.get():
        return layer(*inputs)
    leaves = tf.nest.flatten(inputs)
    outputs: list[Any] = []

    def flat(*tensors):
        given = iter(tensors)
        known = [None if leaf is None else next(given) for leaf in leaves]
        outputs[:] = [layer(*tf.nest.pack_sequence_as(inputs, known))]
        return tf.nest.flatten(outputs[0])

    found = tf.recompute_grad(flat)(*[leaf for leaf in leaves if leaf is not None])
    return tf.nest.pack_sequence_as(outputs[0], found)
