"""One update of a TrainState, compiled: on one device, or on the replicas of a strategy."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import tensorflow as tf

from replicator.runs.errors import UserError
from replicator.strategies.base import Replicator
from replicator.training.accumulation import Batch, prepared
from replicator.training.state import LossFn, TrainState

Metrics = Mapping[str, tf.Tensor]


def compile_step(
    state: TrainState, loss_fn: LossFn, jit_compile: bool
) -> Callable[[Batch], Metrics]:
    """A function from a batch to the metrics of one update, which it makes.

    An update whose loss or gradient is not finite is not made.
    """

    @tf.function(jit_compile=jit_compile, autograph=False)
    def step(batch: Batch):
        values, metrics = state.update(loss_fn, batch)
        state.assign(state.guarded(values, metrics))
        return metrics

    return step


def compile_shared_step(
    state: TrainState,
    loss_fn: LossFn,
    jit_compile: bool,
    replicator: Replicator,
    told: Mapping[str, tf.Variable],
    reads: Sequence[tf.Variable] = (),
) -> Callable[[Iterator], Metrics]:
    """A function from an iterator over `replicator.batches` to the metrics of one update.

    It is that of `compile_step` on the whole batch: losses, metrics and gradients of the replicas
    are averaged, then all of them move alike. XLA compiles loss and gradients of a share.

    Args:
      state, loss_fn: made in the scope of `replicator`, with every variable that the loss reads.
      jit_compile: as for `compile_step`; left out where variables are on other machines.
      replicator: of more than one device.
      told: float variables of this process, whose mean over replicas joins the metrics.
      reads: what the loss reads beside the state.
    """

    def local(batch: Batch):
        batch = prepared(loss_fn, batch, state.optimizer.accumulate, replicator)
        # XLA's function is one for each replica, because it holds on to that one's variables.
        jitted = jit_compile and not replicator.is_async
        pure = tf.function(gradients, jit_compile=True, autograph=False) if jitted else gradients
        figures, slopes = pure(batch)
        return {**figures, "told": {k: tf.identity(v) for k, v in told.items()}}, slopes

    def gradients(batch: Batch):
        loss, metrics, slopes = state.gradients(loss_fn, batch)
        return {"loss": loss, "metrics": metrics}, slopes

    def moved(figures, slopes):
        values, taken = state.moved(slopes)
        metrics = {"loss": figures["loss"], **taken, **figures["metrics"], **figures["told"]}
        return state.guarded(values, metrics, spread=replicator.name == "sharded"), metrics

    return replicator.compile_training(local, moved, list(state.slots().values()), reads=reads)


def is_alone(replicator: Replicator) -> bool:
    """Whether there is but one device, so that nothing stands between it and a plain step."""
    return replicator.name == "single" and replicator.num_logical_devices == 1


def check_rows(rows: int, replicator: Replicator, parts: int = 1) -> None:
    """Returns nothing; raises UserError unless the replicas can share so many rows evenly.

    parts: that each replica cuts its share into, see `OptimizerConfig.accumulate`.
    """
    shares = parts if replicator.is_async else replicator.num_devices * parts
    if rows % shares:
        cut = f" in {parts} parts each" if parts > 1 else ""
        raise UserError(
            f"`batch_size` must be a multiple of {shares}, the replicas that share a batch{cut}, "
            f"got {rows}."
        )
