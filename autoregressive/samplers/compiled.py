"""A cache of a model's compiled functions."""

from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

Made = TypeVar("Made")


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
        """Return a function wrapped in `tf.function`, created once per name.

        Args:
          name: the key; a second function of the same name is ignored.
          function: the function, of tensors.
          jit_compile: whether to compile it with XLA.
          **options: further options of `tf.function`.
        """
        options = {"autograph": False, "jit_compile": jit_compile, **options}
        return self.once(name, lambda: tf.function(function, **options))
