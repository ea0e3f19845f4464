"""The training state: weights, Adam's moments, the Polyak average and the step; and its update.

Kingma and Ba 2015, "Adam: A Method for Stochastic Optimization", algorithm 1:

    m <- b1 m + (1 - b1) g,     v <- b2 v + (1 - b2) g^2
    w <- w - rate * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + epsilon)
"""

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.foundation.model_folders import variable_names
from onepass.foundation.rules import UserError, must_be
from onepass.foundation.run_directory import Checkpoints, check_arrays
from onepass.foundation.runtime import rematerialising
from onepass.replicator.strategies.base import Replicator
from onepass.replicator.strategies.coordination import broadcast_initial_state
from onepass.replicator.training.batches import Batch, accumulate_gradients, split_microbatches
from onepass.replicator.training.config import OptimizerConfig

Tensors = list[tf.Tensor]
LossFn = Callable[[Batch], tuple[tf.Tensor, dict[str, tf.Tensor]]]
Metrics = Mapping[str, tf.Tensor]


def learning_rate(config: OptimizerConfig, step: tf.Tensor, num_steps: int) -> tf.Tensor:
    """Return the learning rate, float32 [], of the update after `step` (int32 []) updates."""
    step = tf.cast(step, tf.float32)
    rate = config.learning_rate * tf.minimum(1.0, (step + 1.0) / max(config.warmup_steps, 1))
    if config.decay == "cosine":
        rate *= 0.5 * (1.0 + tf.cos(math.pi * tf.minimum(step / num_steps, 1.0)))
    if config.decay == "cooldown":
        rate *= tf.clip_by_value((num_steps - step) / config.cooldown_steps, 0.0, 1.0)
    if config.decay == "halve":
        rate *= 0.5 ** tf.floor(step / config.halve_every_steps)
    return rate


def clip_by_global_norm(gradients: Tensors, limit: float) -> tuple[Tensors, tf.Tensor]:
    """Return the gradients scaled down to the global norm `limit` (0: no limit), and their norm."""
    squares = [tf.cast(tf.reduce_sum(tf.square(g)), tf.float32) for g in gradients]
    norm = tf.sqrt(tf.add_n(squares))
    if not limit:
        return gradients, norm
    scale = limit / tf.maximum(norm, limit)
    return [g * tf.cast(scale, g.dtype) for g in gradients], norm


def adam(
    config: OptimizerConfig,
    rate: tf.Tensor,
    step: tf.Tensor,
    weights: Tensors,
    gradients: Tensors,
    first: Tensors,
    second: Tensors,
) -> tuple[Tensors, Tensors, Tensors]:
    """Return weights, first and second moments after the Adam update that follows `step`."""
    count = tf.cast(step + 1, tf.float32)
    b1, b2 = config.beta1, config.beta2
    first = [b1 * m + (1 - b1) * g for m, g in zip(first, gradients, strict=True)]
    second = [b2 * v + (1 - b2) * tf.square(g) for v, g in zip(second, gradients, strict=True)]
    first_bias, second_bias = 1.0 - tf.pow(b1, count), 1.0 - tf.pow(b2, count)

    # Rate and corrections are float32; weights may have a different type.
    def update_weight(w: tf.Tensor, m: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
        own_rate, of_m, of_v = (tf.cast(x, w.dtype) for x in (rate, first_bias, second_bias))
        return w - own_rate * (m / of_m) / (tf.sqrt(v / of_v) + config.epsilon)

    return list(map(update_weight, weights, first, second)), first, second


def polyak(config: OptimizerConfig, step: tf.Tensor, average: Tensors, weights: Tensors) -> Tensors:
    """Return the moving average of the weights; its decay starts low, so it needs no warm-up."""
    count = tf.cast(step, tf.float32)
    decay = tf.minimum(config.average_decay, (1.0 + count) / (10.0 + count))
    pairs = zip(average, weights, strict=True)
    return [tf.cast(decay, a.dtype) * a + tf.cast(1.0 - decay, a.dtype) * w for a, w in pairs]


def assign_arrays(variables: Mapping[str, tf.Variable], arrays: Mapping[str, np.ndarray]) -> None:
    """Assign each variable the array with its name; raise before any if one does not fit."""
    check_arrays(arrays, {n: (v.shape, v.dtype.name) for n, v in variables.items()})
    for name, variable in variables.items():
        variable.assign(arrays[name])


def resume_variables(
    replicator: Replicator,
    checkpoints: Checkpoints,
    variables: Mapping[str, tf.Variable],
    identity: dict | None = None,
) -> None:
    """Set the variables of every process from the chief's newest checkpoint, or else its variables.

    `identity` contains JSON values, such as the configuration, that must be equal in all processes.
    """
    arrays = checkpoints.newest()[0] if replicator.is_chief else None
    if arrays is not None:
        assign_arrays(variables, arrays)
    broadcast_initial_state(replicator, variables, identity or {})


class TrainState(tf.Module):
    """The variables of a training run, and their update as a pure function.

    `weights` are the trainable variables of the network, then those of the opponent; `first`,
    `second` and `average` Adam's moments and the Polyak average of each; `size` is the number of
    elements of the network's own. The `opponent` is another network trained with the same loss,
    such as discriminators; `tf.stop_gradient` in the loss gives each only its own gradient.
    """

    def __init__(
        self,
        network: tf.Module,
        optimizer: OptimizerConfig,
        num_steps: int,
        schedule: Callable[[tf.Tensor], tf.Tensor] | None = None,  # of the step; None: optimizer's
        opponent: tf.Module | None = None,
    ):
        super().__init__(name="train_state")
        self.optimizer, self.num_steps, self._schedule = optimizer, num_steps, schedule
        self.names = variable_names(network)
        self.weights = list(network.trainable_variables)
        self.size = sum(math.prod(weight.shape) for weight in self.weights)
        if opponent is not None:
            self.names += [f"opponent/{name}" for name in variable_names(opponent)]
            self.weights += opponent.trainable_variables
        self.first = self._slots("first", tf.zeros_like)
        self.second = self._slots("second", tf.zeros_like)
        self.average = self._slots("average", tf.convert_to_tensor)
        self.step = tf.Variable(0, trainable=False, dtype=tf.int32)

    def _slots(self, kind: str, start: Callable[[tf.Variable], tf.Tensor]) -> list[tf.Variable]:
        pairs = zip(self.names, self.weights, strict=True)
        return [tf.Variable(start(w), trainable=False, name=f"{kind}/{n}") for n, w in pairs]

    def slots(self) -> dict[str, tf.Variable]:
        """Return all variables, by their names in checkpoints."""
        slots: dict[str, tf.Variable] = {"step": self.step}
        for kind in ("weights", "first", "second", "average"):
            slots |= self._by_name(kind)
        return slots

    def _by_name(self, kind: str) -> dict[str, tf.Variable]:
        pairs = zip(self.names, getattr(self, kind), strict=True)
        return {f"{kind}/{name}": variable for name, variable in pairs}

    def update(self, loss_fn: LossFn, batch: Batch) -> tuple[list[tf.Tensor], Batch]:
        """Return new values of all slots, in their order, and metrics; assign no variable."""
        batch = split_microbatches(loss_fn, batch, self.optimizer.accumulate)
        loss, metrics, gradients = self.gradients(loss_fn, batch)
        values, figures = self.compute_update(gradients)
        return values, {"loss": loss, **figures, **metrics}

    def gradients(
        self, loss_fn: LossFn, batch: Batch
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor], list[tf.Tensor]]:
        """Return loss [], metrics and gradients of a batch that `split_microbatches` returned."""
        num_microbatches = self.optimizer.accumulate
        if num_microbatches == 1:
            return self._gradients(loss_fn, batch)
        gradients = functools.partial(self._gradients, loss_fn)
        return accumulate_gradients(gradients, batch, num_microbatches)

    def _gradients(
        self, loss_fn: LossFn, batch: Batch
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor], list[tf.Tensor]]:
        with tf.GradientTape() as tape, rematerialising(self.optimizer.rematerialise):
            for weight in self.weights:
                if not weight.trainable:  # according to TensorFlow; a Keras layer was unfrozen
                    tape.watch(weight)
            loss, metrics = loss_fn(batch)
        gradients = tape.gradient(loss, self.weights)
        for name, gradient in zip(self.names, gradients, strict=True):
            if gradient is None:
                raise ValueError(f"`loss_fn` must depend on every weight, but not on `{name}`.")
        return loss, metrics, [tf.convert_to_tensor(g) for g in gradients]

    def compute_update(
        self, gradients: list[tf.Tensor]
    ) -> tuple[list[tf.Tensor], dict[str, tf.Tensor]]:
        """Return all slots' new values and metrics, by operations that DTensor runs on shards."""
        gradients, norm = clip_by_global_norm(gradients, self.optimizer.clip_norm)
        rate = self.rate(self.step, self.num_steps)
        weights, first, second, average = (
            [tf.convert_to_tensor(v) for v in slot]
            for slot in (self.weights, self.first, self.second, self.average)
        )
        weights, first, second = adam(
            self.optimizer, rate, self.step, weights, gradients, first, second
        )
        average = polyak(self.optimizer, self.step, average, weights)
        values = [self.step + 1, *weights, *first, *second, *average]
        return values, {"gradient_norm": norm, "learning_rate": rate}

    def rate(self, step: tf.Tensor, num_steps: int) -> tf.Tensor:
        """Return the learning rate, float32 [], of the update after `step` (int32 []) updates."""
        if self._schedule is None:
            return learning_rate(self.optimizer, step, num_steps)
        return tf.cast(self._schedule(step), tf.float32)

    def skip_nonfinite(
        self, values: list[tf.Tensor], metrics: Mapping[str, tf.Tensor], elementwise: bool = False
    ) -> list[tf.Tensor]:
        """Return `values`, or the slots' current ones if the loss or gradient is not finite.

        With `elementwise` the condition has the shape of each value, which DTensor requires.
        """
        is_finite = tf.math.is_finite(metrics["loss"]) & tf.math.is_finite(metrics["gradient_norm"])
        pairs = zip(values, self.slots().values(), strict=True)
        if elementwise:
            return [tf.where(tf.broadcast_to(is_finite, v.shape), v, old) for v, old in pairs]
        return [tf.where(is_finite, value, old) for value, old in pairs]

    def assign(self, values: Iterable[tf.Tensor | np.ndarray]) -> None:
        """Assign all slots from values in the order of `slots()`."""
        for variable, value in zip(self.slots().values(), values, strict=True):
            variable.assign(value)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return a copy of every slot, by its name in checkpoints."""
        return {name: variable.numpy().copy() for name, variable in self.slots().items()}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Set all slots from a state's `arrays()`; raise UserError if an array does not fit."""
        assign_arrays(self.slots(), arrays)

    def average_slots(self) -> dict[str, tf.Variable]:
        """Return the variables that `use_average` reads, by their names in checkpoints."""
        return self._by_name("average")

    def start(self, weights: Sequence[tf.Variable]) -> None:
        """Set the weights and their average from another network's weights in the same order."""
        for weight, average, given in zip(self.weights, self.average, weights, strict=True):
            value = tf.convert_to_tensor(given)
            weight.assign(value)
            average.assign(value)

    @contextlib.contextmanager
    def swap_in_average(self) -> Iterator[None]:
        """Replace all weights, the opponent's included, with their Polyak averages in the block."""
        live = [weight.numpy().copy() for weight in self.weights]
        self.use_average()
        try:
            yield
        finally:
            for weight, value in zip(self.weights, live, strict=True):
                weight.assign(value)

    def use_average(self) -> None:
        """Set all weights, the opponent's included, to their Polyak averages."""
        for weight, average in zip(self.weights, self.average, strict=True):
            weight.assign(average)


def compile_step(
    state: TrainState, loss_fn: LossFn, jit_compile: bool
) -> Callable[[Batch], Metrics]:
    """Return a function that makes one update, if it is finite, and returns its metrics."""

    @tf.function(jit_compile=jit_compile, autograph=False)
    def step(batch: Batch) -> Metrics:
        values, metrics = state.update(loss_fn, batch)
        state.assign(state.skip_nonfinite(values, metrics))
        return metrics

    return step


def compile_replicated_step(
    state: TrainState,
    loss_fn: LossFn,
    jit_compile: bool,
    replicator: Replicator,
    extra_metrics: Mapping[str, tf.Variable],
    reads: Sequence[tf.Variable] = (),
) -> Callable[[Iterator], Metrics]:
    """Return a function that makes one update with an iterator's next batch and returns metrics.

    The iterator is over `replicator.batches`, and the update that of `compile_step` on the global
    batch. XLA compiles a replica's loss and gradients, but not the collectives; it compiles nothing
    if variables are on other machines. The mean of `extra_metrics`, float variables of this
    process, is added to the metrics; the loss also reads `reads`.
    """

    def gradients_fn(batch: Batch) -> tuple[dict[str, Any], list[tf.Tensor]]:
        batch = split_microbatches(loss_fn, batch, state.optimizer.accumulate, replicator)
        compute = functools.partial(state.gradients, loss_fn)
        if jit_compile and not replicator.is_async:
            # One function per replica, because XLA binds it to the variables of that replica.
            compute = tf.function(compute, jit_compile=True, autograph=False)
        loss, metrics, gradients = compute(batch)
        extra = {name: tf.identity(variable) for name, variable in extra_metrics.items()}
        return {"loss": loss, "metrics": metrics, "extra": extra}, gradients

    def update_fn(
        figures: dict[str, Any], gradients: list[tf.Tensor]
    ) -> tuple[list[tf.Tensor], Metrics]:
        values, metrics = state.compute_update(gradients)
        metrics = {"loss": figures["loss"], **metrics, **figures["metrics"], **figures["extra"]}
        elementwise = replicator.name == "sharded"
        return state.skip_nonfinite(values, metrics, elementwise), metrics

    variables = list(state.slots().values())
    return replicator.compile_training(gradients_fn, update_fn, variables, reads=reads)


def is_single_device(replicator: Replicator) -> bool:
    """Return whether there is only one device, for which `compile_step` suffices."""
    return replicator.name == "single" and replicator.num_logical_devices == 1


def check_rows(rows: int, replicator: Replicator, num_microbatches: int = 1) -> None:
    """Raise UserError unless the replicas' microbatches divide the rows evenly."""
    shares = replicator.num_devices * num_microbatches
    if rows % shares:
        each = f" in {num_microbatches} microbatches each" if num_microbatches > 1 else ""
        rule = f"a multiple of {shares}, the replicas that share a batch{each}"
        raise UserError(must_be("batch_size", rule, rows))
