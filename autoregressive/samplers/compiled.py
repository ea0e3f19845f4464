"""The one cache of what is compiled for a model."""

from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

Made = TypeVar("Made")


class Compiled:
    """Samplers and functions of a model, each made once by its name; they last as long as it."""

    def __init__(self) -> None:
        self._made: dict[Any, Any] = {}

    def once(self, name: Any, make: Callable[[], Made]) -> Made:
        """Return what was made under a name, or make it."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def function(
        self, name: Any, function: Callable[..., Any], jit_compile: bool = False, **options: Any
    ) -> Callable[..., Any]:
        """Return a function as TensorFlow compiles it, once per name.

        Args:
          name: the key; a function of the same name is not compiled again.
          function: the function, of tensors.
          jit_compile: compile it by XLA.
          **options: further options of `tf.function`.
        """
        options = {"autograph": False, "jit_compile": jit_compile, **options}
        return self.once(name, lambda: tf.function(function, **options))
