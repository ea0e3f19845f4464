"""Optimisers of Keras 3, tf_keras and others with gradients averaged over replicas."""

import inspect
import re

import tensorflow as tf

from replicator.runs.errors import UserError


def variables_in_step_error(error: Exception) -> UserError | None:
    """Return the UserError for variables that a step created while being traced, else None."""
    if type(error).__name__ != "UnliftableError" and "singleton tf.Variables" not in str(error):
        return None
    found = re.search(r"tensor '(\w+/\w+)", str(error))
    which = f" (`{found[1]}`)" if found else ""
    return UserError(
        f"A step must not create variables{which}: create them in `scope()`, those of an optimizer "
        "with `optimizer.build(variables)`."
    )


class WrappedOptimizer(tf.Module):
    """An optimiser whose `apply_gradients` averages over replicas; all else is the inner one's.

    The inner optimiser's own reduction over replicas is switched off.
    """

    def __init__(self, replicator, optimizer):
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
        # Keras 3 has no such option. Keeping its sum and dividing by the replicas would clip and
        # scale other gradients. LossScaleOptimizer wraps another optimiser.
        for each in (optimizer, getattr(optimizer, "inner_optimizer", None)):
            if each and not self._options and hasattr(each, "_all_reduce_sum_gradients"):
                each._all_reduce_sum_gradients = list

    def __getattr__(self, name: str):
        if "optimizer" not in self.__dict__:  # tf.Module.__init__ has not set it yet
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    @property
    def variables(self):
        """The optimiser's variables."""
        variables = self.optimizer.variables
        return variables() if callable(variables) else variables

    def apply_gradients(self, grads_and_vars, **options):
        """Apply the mean over replicas of (gradient, variable) pairs; in a step only."""
        gradients, variables = zip(*grads_and_vars, strict=True)
        gradients = self._replicator.all_reduce(list(gradients), "mean")
        pairs = zip(gradients, variables, strict=True)
        return self.optimizer.apply_gradients(pairs, **self._options, **options)

    def apply(self, gradients, variables):
        """Apply the mean over replicas of gradients to variables, given as lists."""
        return self.apply_gradients(zip(gradients, variables, strict=True))

    def minimize(self, loss, variables, tape):
        """Apply the gradients of a loss that `tape` has recorded."""
        return self.apply(tape.gradient(loss, variables), variables)
