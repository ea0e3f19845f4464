"""Compile one update of a TrainState, on one device or on the replicas of a strategy."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from onepass.foundation.errors import UserError
from onepass.replicator.strategies.base import Replicator
from onepass.replicator.training.accumulation import Batch, split_microbatches
from onepass.replicator.training.state import LossFn, TrainState

Metrics = Mapping[str, tf.Tensor]


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

    The iterator is over `replicator.batches`.

    The update is the same as that of `compile_step` on the global batch: losses, metrics and
    gradients are averaged over the replicas, each of which then applies the same update. XLA
    compiles a replica's loss and gradients, but not the collectives; it compiles nothing if
    variables are on other machines.

    The state and all variables that the loss reads must be created in the scope of `replicator`.
    The mean of `extra_metrics`, float variables of this process, is added to the metrics; `reads`
    are variables that the loss reads in addition to the state.
    """

    def gradients_fn(batch: Batch) -> tuple[dict[str, Any], list[tf.Tensor]]:
        batch = split_microbatches(loss_fn, batch, state.optimizer.accumulate, replicator)
        jitted = jit_compile and not replicator.is_async
        # One function per replica, because XLA binds it to the variables of that replica.
        compute = tf.function(local, jit_compile=True, autograph=False) if jitted else local
        figures, gradients = compute(batch)
        extra = {name: tf.identity(variable) for name, variable in extra_metrics.items()}
        return {**figures, "extra": extra}, gradients

    def local(batch: Batch) -> tuple[dict[str, Any], list[tf.Tensor]]:
        loss, metrics, gradients = state.gradients(loss_fn, batch)
        return {"loss": loss, "metrics": metrics}, gradients

    def update_fn(
        figures: dict[str, Any], gradients: list[tf.Tensor]
    ) -> tuple[list[tf.Tensor], Metrics]:
        values, update_metrics = state.compute_update(gradients)
        metrics = {
            "loss": figures["loss"],
            **update_metrics,
            **figures["metrics"],
            **figures["extra"],
        }
        elementwise = replicator.name == "sharded"
        return state.skip_nonfinite(values, metrics, elementwise), metrics

    variables = list(state.slots().values())
    return replicator.compile_training(gradients_fn, update_fn, variables, reads=reads)


def is_single_device(replicator: Replicator) -> bool:
    """Return whether there is only one device, for which `compile_step` suffices."""
    return replicator.name == "single" and replicator.num_logical_devices == 1


def check_rows(rows: int, replicator: Replicator, num_microbatches: int = 1) -> None:
    """Raise UserError unless the replicas' microbatches divide the rows evenly."""
    replicas = 1 if replicator.is_async else replicator.num_devices
    if rows % (replicas * num_microbatches):
        each = f" in {num_microbatches} microbatches each" if num_microbatches > 1 else ""
        raise UserError(
            f"`batch_size` must be a multiple of {replicas * num_microbatches}, the replicas that "
            f"share a batch{each}, got {rows}."
        )
