"""Wrap optimisers of Keras 3, tf_keras and others to average gradients over replicas."""

import inspect
import re
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import tensorflow as tf

from onepass.foundation.errors import UserError


def variables_in_step_error(error: Exception) -> UserError | None:
    """Return a UserError if a step created variables while being traced, else None."""
    if type(error).__name__ != "UnliftableError" and "singleton tf.Variables" not in str(error):
        return None
    found = re.search(r"tensor '(\w+/\w+)", str(error))
    which = f" (`{found[1]}`)" if found else ""
    return UserError(
        f"A step must not create variables{which}: create them in `scope()`, those of an optimizer "
        "with `optimizer.build(variables)`."
    )


class Averaging(Protocol):
    """The interface of a replicator that a wrapped optimiser uses."""

    @property
    def is_async(self) -> bool:
        """Return whether replicas update without waiting for each other."""

    def all_reduce(self, value: Any, reducer: str) -> Any:
        """Reduce each tensor of a nest over replicas."""


class WrappedOptimizer(tf.Module):
    """An optimiser whose `apply_gradients` averages over replicas.

    Other attributes are those of the inner optimiser, whose own reduction over replicas is switched
    off. Raise ValueError if that has no `apply_gradients`.
    """

    def __init__(self, replicator: Averaging, optimizer: Any):
        super().__init__(name="wrapped_optimizer")
        if not hasattr(optimizer, "apply_gradients"):
            raise ValueError(
                f"`optimizer` must have `apply_gradients`, got a {type(optimizer).__name__}."
            )
        self._replicator = replicator
        self.optimizer = optimizer
        self._options = {}
        known = inspect.signature(optimizer.apply_gradients).parameters
        if "skip_gradients_aggregation" in known:
            self._options["skip_gradients_aggregation"] = True
        elif "experimental_aggregate_gradients" in known and not replicator.is_async:
            self._options["experimental_aggregate_gradients"] = False
        # Keras 3 has no such option. Keeping its sum and dividing by the number of replicas would
        # clip and scale different gradients. LossScaleOptimizer wraps another optimiser.
        for each in (optimizer, getattr(optimizer, "inner_optimizer", None)):
            if each and not self._options and hasattr(each, "_all_reduce_sum_gradients"):
                each._all_reduce_sum_gradients = list

    def __getattr__(self, name: str) -> Any:
        if "optimizer" not in self.__dict__:  # tf.Module.__init__ has not set it yet
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    @property
    def variables(self) -> Any:
        """The optimiser's variables."""
        variables = self.optimizer.variables
        return variables() if callable(variables) else variables

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[tf.Tensor, tf.Variable]], **options: Any
    ) -> Any:
        """Average the gradients of (gradient, variable) pairs and apply them, inside a step."""
        gradients, variables = zip(*grads_and_vars, strict=True)
        gradients = self._replicator.all_reduce(list(gradients), "mean")
        pairs = zip(gradients, variables, strict=True)
        return self.optimizer.apply_gradients(pairs, **self._options, **options)

    def apply(self, gradients: Iterable[tf.Tensor], variables: Iterable[tf.Variable]) -> Any:
        """Average gradients over replicas and apply them to variables, inside a step."""
        return self.apply_gradients(zip(gradients, variables, strict=True))

    def minimize(
        self, loss: tf.Tensor, variables: Sequence[tf.Variable], tape: tf.GradientTape
    ) -> Any:
        """Average the gradients of a loss recorded by `tape` and apply them, inside a step."""
        return self.apply(tape.gradient(loss, variables), variables)
