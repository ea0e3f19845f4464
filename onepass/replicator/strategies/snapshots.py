"""Variables that a step reads only once, even if other workers change them meanwhile.

An asynchronous update adds the difference between the new value and the value read. If a step read
a variable twice, the gradient and the difference could belong to different values.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

# Gradient tapes must record a repeated read as a read, for which there is no public API.
from tensorflow.python.eager import record
from tensorflow.python.ops import resource_variable_ops


class Snapshots:
    """The values that the step being traced by a thread has read so far."""

    def __init__(self) -> None:
        self._thread = threading.local()

    @contextlib.contextmanager
    def of_step(self) -> Iterator[None]:
        """Record the reads of a step that this thread traces inside the block."""
        self._thread.graph = tf.compat.v1.get_default_graph()
        self._thread.values = {}
        try:
            yield
        finally:
            self._thread.values = None

    def values(self) -> dict[int, Any] | None:
        """Return the values read, by variable `id`; None outside a step or in nested functions."""
        values = getattr(self._thread, "values", None)
        if values is None or tf.compat.v1.get_default_graph() is not self._thread.graph:
            return None
        return values

    def create(
        self, next_creator: Callable[..., tf.Variable], **options: Any
    ) -> "SnapshotVariable":
        """Create a variable, as a creator for `tf.variable_creator_scope`."""
        known = {key: options[key] for key in _OPTIONS if options.get(key) is not None}
        return SnapshotVariable(self, known)


def recorded_read(variable: tf.Variable, value: tf.Tensor) -> tf.Tensor:
    """Return the value, recorded by gradient tapes as a read of the variable."""
    resource_variable_ops.variable_accessed(variable)
    with record.stop_recording():
        value = tf.identity(value)
    record.record_operation(
        "ReadVariableOp", [value], [variable.handle], lambda upstream: [upstream]
    )
    return value


_OPTIONS = (
    "initial_value",
    "trainable",
    "name",
    "dtype",
    "shape",
    "constraint",
    "distribute_strategy",  # a strategy identifies its variables by it
)


class SnapshotVariable(resource_variable_ops.ResourceVariable):
    """A variable that a step reads only once, unless the step sets it between reads."""

    def __init__(self, snapshots: Snapshots, options: dict[str, Any]):
        self._snapshots = snapshots
        super().__init__(**options)

    def _read_variable_op(self, no_copy: bool = False) -> tf.Tensor:
        values = self._snapshots.values()
        if values is None:
            return super()._read_variable_op(no_copy)
        if id(self) not in values:
            values[id(self)] = super()._read_variable_op(no_copy)
            return values[id(self)]
        return recorded_read(self, values[id(self)])

    def assign(self, value: Any, *options: Any, **named: Any) -> Any:
        """Set the variable; the next read in the step returns its new value."""
        self._forget()
        return super().assign(value, *options, **named)

    def assign_add(self, delta: Any, *options: Any, **named: Any) -> Any:
        """Add to the current value, which other workers may have changed."""
        self._forget()
        return super().assign_add(delta, *options, **named)

    def assign_sub(self, delta: Any, *options: Any, **named: Any) -> Any:
        """Subtract from the current value, which other workers may have changed."""
        self._forget()
        return super().assign_sub(delta, *options, **named)

    def _forget(self) -> None:
        (self._snapshots.values() or {}).pop(id(self), None)
