"""The state of training with a Keras optimiser."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from onepass.replicator.training.config import OptimizerConfig
from onepass.replicator.training.state import TrainState, clip_by_global_norm


class WeightsModule(tf.Module):
    """A module with given variables, for training code that expects a module."""

    def __init__(self, variables: Sequence[tf.Variable]) -> None:
        super().__init__(name="network")
        self.weights = list(variables)

    @property
    def trainable_variables(self) -> tuple[tf.Variable, ...]:
        """All variables, even those that TensorFlow marks as not trainable."""
        return tuple(self.weights)


class KerasState(TrainState):
    """A `TrainState` that is updated by a Keras optimiser, without averaged weights."""

    def __init__(self, network: tf.Module, optimizer: Any, num_steps: int) -> None:
        super().__init__(network, OptimizerConfig(clip_norm=0.0), num_steps)
        self.first, self.second, self.average = [], [], []
        self._keras = optimizer
        optimizer.build(self.weights)

    def slots(self) -> dict[str, tf.Variable]:
        """Return every variable by its name in checkpoints: step, weights, optimiser state."""
        slots: dict[str, tf.Variable] = {"step": self.step}
        slots |= {f"weights/{n}": v for n, v in zip(self.names, self.weights, strict=True)}
        own = [getattr(variable, "value", variable) for variable in self._keras.variables]
        return slots | {f"optimizer/{number}": variable for number, variable in enumerate(own)}

    def average_slots(self) -> dict[str, tf.Variable]:
        """Return the weights themselves, since there is no average."""
        return {f"weights/{n}": v for n, v in zip(self.names, self.weights, strict=True)}

    def compute_update(
        self, gradients: list[tf.Tensor]
    ) -> tuple[list[tf.Tensor], dict[str, tf.Tensor]]:
        """Return the values of all slots after an update, and metrics; no variable is changed."""
        _, norm = clip_by_global_norm(gradients, 0.0)
        variables = list(self.slots().values())
        before = [tf.identity(variable) for variable in variables]
        with tf.control_dependencies(before):
            self._keras.apply(gradients, self.weights)
        values = [self.step + 1, *(tf.identity(variable) for variable in variables[1:])]
        # The values are restored, because `skip_nonfinite` decides whether the update is applied.
        with tf.control_dependencies(values):
            for variable, value in zip(variables[1:], before[1:], strict=True):
                variable.assign(value)
        rate = tf.cast(self._keras.learning_rate, tf.float32)
        return values, {"gradient_norm": norm, "learning_rate": rate}

    def use_average(self) -> None:
        """Leave the weights unchanged, since there is no average."""
