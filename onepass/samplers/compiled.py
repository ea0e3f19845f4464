"""Compiled functions: a model's cache of them, and a step that is compiled once."""

from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

Made = TypeVar("Made")


def compiled_step(step: Callable[..., tuple[tf.Tensor, Any]]) -> Callable[..., Any]:
    """Return a step that XLA compiles once, whatever the position in its state.

    XLA compiles a program anew for every value of an argument at which a slice starts, as for the
    position of a ring, but not for that of what a loop changes: the step is a loop's only pass.
    """

    def run(state: Any, *given: Any) -> tuple[tf.Tensor, Any]:
        traced = tf.function(step, autograph=False).get_concrete_function(state, *given)
        result = traced.structured_outputs[0]
        before = tf.constant(0), tf.zeros(result.shape, result.dtype), state

        def body(passes: tf.Tensor, result: tf.Tensor, state: Any) -> tuple[Any, ...]:
            return passes + 1, *step(state, *given)

        return tf.while_loop(lambda passes, *_: passes < 1, body, before)[1:]

    return tf.function(run, autograph=False, jit_compile=True)


class Compiled:
    """A model's samplers and compiled functions, created once per name and kept with the model."""

    def __init__(self) -> None:
        self._made: dict[Any, Any] = {}

    def once(self, name: Any, make: Callable[[], Made]) -> Made:
        """Return the object cached under a name; create it if there is none."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def function(
        self, name: Any, function: Callable[..., Any], jit_compile: bool = False, **options: Any
    ) -> Callable[..., Any]:
        """Return a `tf.function`, created once per name; a second function of a name is ignored."""
        options = {"autograph": False, "jit_compile": jit_compile, **options}
        return self.once(name, lambda: tf.function(function, **options))
