"""All that training changes: weights, Adam's moments, the Polyak average and the step."""

import contextlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from replicator.runs.errors import UserError
from replicator.runs.model_folder import variable_names
from replicator.training.accumulation import Batch, accumulated, prepared
from replicator.training.config import OptimizerConfig
from replicator.training.optimizer import adam, clip_by_global_norm, learning_rate, polyak

LossFn = Callable[[Batch], tuple[tf.Tensor, dict[str, tf.Tensor]]]


class TrainState(tf.Module):
    """The variables of a training run and the pure function that moves them on by a step."""

    def __init__(self, network: tf.Module, optimizer: OptimizerConfig, num_steps: int):
        super().__init__(name="train_state")
        self.optimizer, self.num_steps = optimizer, num_steps
        self.names = variable_names(network)
        self.weights = list(network.trainable_variables)
        self.first = self._slots("first", tf.zeros_like)
        self.second = self._slots("second", tf.zeros_like)
        self.average = self._slots("average", tf.convert_to_tensor)
        self.step = tf.Variable(0, trainable=False, dtype=tf.int32)

    def _slots(self, kind: str, start: Callable[[tf.Variable], tf.Tensor]) -> list[tf.Variable]:
        """A variable beside each weight, named after it, so that it is laid out alike."""
        pairs = zip(self.names, self.weights, strict=True)
        return [tf.Variable(start(w), trainable=False, name=f"{kind}/{n}") for n, w in pairs]

    def slots(self) -> dict[str, tf.Variable]:
        """Every variable under the name that checkpoints give it."""
        slots: dict[str, tf.Variable] = {"step": self.step}
        for kind in ("weights", "first", "second", "average"):
            slots |= {
                f"{kind}/{n}": v for n, v in zip(self.names, getattr(self, kind), strict=True)
            }
        return slots

    def update(self, loss_fn: LossFn, batch: Batch):
        """The values of all slots after one step, in `slots()` order, and the metrics.

        A pure function: it reads the variables and assigns none.
        """
        batch = prepared(loss_fn, batch, self.optimizer.accumulate)
        loss, told, gradients = self.gradients(loss_fn, batch)
        values, figures = self.moved(gradients)
        return values, {"loss": loss, **figures, **told}

    def gradients(self, loss_fn: LossFn, batch: Batch):
        """The loss of a batch, [], the metrics beside it, and a gradient for each weight.

        batch: `prepared` for as many parts as the optimiser accumulates.
        """
        parts = self.optimizer.accumulate
        if parts == 1:
            return self._gradients(loss_fn, batch)
        return accumulated(lambda part: self._gradients(loss_fn, part), batch, parts)

    def _gradients(self, loss_fn: LossFn, batch: Batch):
        with tf.GradientTape() as tape:
            loss, metrics = loss_fn(batch)
        gradients = tape.gradient(loss, self.weights)
        for name, gradient in zip(self.names, gradients, strict=True):
            if gradient is None:
                raise ValueError(f"`loss_fn` must depend on every weight, not so on `{name}`.")
        return loss, metrics, [tf.convert_to_tensor(g) for g in gradients]

    def moved(self, gradients: list[tf.Tensor]):
        """The values of all slots after a step along the gradients, and what it was like.

        A pure function of elementwise operations and sums, in `slots()` order.
        """
        gradients, norm = clip_by_global_norm(gradients, self.optimizer.clip_norm)
        rate = learning_rate(self.optimizer, self.step, self.num_steps)
        read = [
            [tf.convert_to_tensor(v) for v in slot]
            for slot in (self.weights, self.first, self.second, self.average)
        ]
        weights, first, second = adam(
            self.optimizer, rate, self.step, read[0], gradients, read[1], read[2]
        )
        average = polyak(self.optimizer, self.step, read[3], weights)
        values = [self.step + 1, *weights, *first, *second, *average]
        return values, {"gradient_norm": norm, "learning_rate": rate}

    def guarded(
        self, values: list[tf.Tensor], metrics: Mapping[str, tf.Tensor], spread: bool = False
    ) -> list[tf.Tensor]:
        """The values, or those that the slots have where loss or gradient is not finite.

        spread: chooses element by element, which is the same; DTensor knows no other way.
        """
        good = tf.math.is_finite(metrics["loss"]) & tf.math.is_finite(metrics["gradient_norm"])
        pairs = zip(values, self.slots().values(), strict=True)
        if spread:
            return [tf.where(tf.broadcast_to(good, v.shape), v, old) for v, old in pairs]
        return [tf.where(good, value, old) for value, old in pairs]

    def assign(self, values) -> None:
        """Sets every slot from values in `slots()` order."""
        for variable, value in zip(self.slots().values(), values, strict=True):
            variable.assign(value)

    def arrays(self) -> dict[str, np.ndarray]:
        """A copy of every slot."""
        return {name: variable.numpy().copy() for name, variable in self.slots().items()}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Sets every slot from `arrays()` of a state of the same network, or raises UserError."""
        for name, variable in self.slots().items():
            if name not in arrays or tuple(arrays[name].shape) != tuple(variable.shape):
                raise UserError(
                    f"The checkpoint does not fit this network: `{name}` must have "
                    f"shape {tuple(variable.shape)}."
                )
        for name, variable in self.slots().items():
            variable.assign(arrays[name])

    def start(self, weights: Sequence[tf.Variable]) -> None:
        """Sets the weights, and their average with them, in the order of the network's."""
        for weight, average, given in zip(self.weights, self.average, weights, strict=True):
            value = tf.convert_to_tensor(given)
            weight.assign(value)
            average.assign(value)

    @contextlib.contextmanager
    def averaged(self):
        """A context in which the network has the Polyak average for its weights."""
        live = [weight.numpy().copy() for weight in self.weights]
        self.use_average()
        try:
            yield
        finally:
            for weight, value in zip(self.weights, live, strict=True):
                weight.assign(value)

    def use_average(self) -> None:
        """Puts the Polyak average into the network's weights for good."""
        for weight, average in zip(self.weights, self.average, strict=True):
            weight.assign(average)
