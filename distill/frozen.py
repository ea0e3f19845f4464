"""Teachers with frozen weights, which no gradient tape watches, and their digests."""

import hashlib
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

Module = TypeVar("Module", bound=tf.Module)


def freeze(network: tf.Module) -> None:
    """Make every variable of a network untrainable, so that no gradient tape watches it."""
    for variable in network.variables:
        variable._trainable = False  # there is no public way after creation


def frozen_copy(network: Module, make: Callable[[], Module]) -> Module:
    """Return a copy of a network with its own variables, which no gradient tape watches.

    `make` returns an untrained network of the same kind. The variables are created at the call; in
    the scope of a Replicator, every device gets them.
    """

    def make_frozen(make: Callable[..., tf.Variable], **options: Any) -> tf.Variable:
        return make(**{**options, "trainable": False})

    with tf.variable_creator_scope(make_frozen):
        copy = make()
    for variable, original in zip(copy.variables, network.variables, strict=True):
        variable.assign(tf.convert_to_tensor(original))
    return copy


def digest(network: tf.Module) -> str:
    """Return a digest of the weights as 16 hexadecimal digits."""
    code = hashlib.blake2b(digest_size=8)
    for variable in network.variables:
        code.update(variable.numpy().tobytes())
    return code.hexdigest()
