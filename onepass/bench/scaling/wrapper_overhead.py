"""A step as a replicator of one device compiles it, and as a plain tf.function of the same body."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from onepass.bench.report import Measures, Row
from onepass.bench.scaling.models import (
    DENSE_RATE,
    DENSE_ROWS,
    Dense,
    labelled_rows,
    trainable,
)
from onepass.bench.scaling.paired_timing import PairedTiming
from replicator import strategies
from replicator.training.step import compile_replicated_step

WRAPPED, PLAIN, UNIT = "wrapped step", "plain step", "ms/step"
WAVENET, DENSE = "WaveNet", "dense"
Reduce = Callable[[Any], Any]
Update = Callable[[Sequence[tf.Variable], Sequence[tf.Tensor]], None]


def measures_of(
    preset: str, rows: int, samples: int, least_seconds: float
) -> tuple[list[PairedTiming], Measures]:
    """What is to be prepared, and a row and a function to measure it for both models."""
    sounds = wavenet_timing(preset, rows, samples, least_seconds)
    dense = dense_timing(least_seconds)
    return [sounds, dense], [
        *_rows_of(WAVENET, rows, sounds),
        *_rows_of(DENSE, DENSE_ROWS, dense),
    ]


def _rows_of(size: str, batch: int, timing: PairedTiming) -> Measures:
    return [
        (Row(WRAPPED, size, batch, UNIT, PLAIN), lambda: 1e3 * timing.measure()[0]),
        (Row(PLAIN, size, batch, UNIT), lambda: 1e3 * timing.seconds[1]),
    ]


def wavenet_timing(preset: str, rows: int, samples: int, least_seconds: float) -> PairedTiming:
    """The step of the trainers on clips, wrapped and plain, of one state."""
    replicator = strategies.single()
    model = trainable(preset, samples).resized(rows, 1)
    state, loss, jit = model.state, model.loss, model.jit_compile
    batches = tf.data.Dataset.from_tensors(model.batch()).repeat()
    wrapped = compile_replicated_step(state, loss, jit, replicator, {})
    gradients = tf.function(state.gradients, jit_compile=True) if jit else state.gradients

    @tf.function(autograph=False)
    def plain(iterator):
        value, metrics_of_loss, gradient_values = gradients(loss, next(iterator))
        values, update_metrics = state.updated(gradient_values)
        metrics = {"loss": value, **update_metrics, **metrics_of_loss}
        state.assign(state.skip_nonfinite(values, metrics))
        return metrics

    first, second = iter(replicator.batches(batches)), iter(batches)
    return PairedTiming(
        lambda: float(wrapped(first)["loss"]), lambda: float(plain(second)["loss"]), least_seconds
    )


def dense_timing(least_seconds: float) -> PairedTiming:
    """A step of the dense network written with primitives, and the same without them."""
    replicator, batches = strategies.single(), labelled_rows(16)
    network = Dense()
    wrapped = replicator.compile(
        lambda batch: dense_step(
            network, batch, lambda v: replicator.all_reduce(v, "mean"), replicator.update
        )
    )

    @tf.function(autograph=False)
    def plain(iterator):
        return dense_step(network, next(iterator), lambda value: value, _assign)

    first, second = iter(replicator.batches(batches)), iter(batches)
    return PairedTiming(lambda: float(wrapped(first)), lambda: float(plain(second)), least_seconds)


def dense_step(network: Dense, batch, reduce: Reduce, update: Update):
    """Moves the network along the reduced gradients and gives its loss before."""
    weights = list(network.trainable_variables)
    with tf.GradientTape() as tape:
        loss = network.loss(*batch)
    loss, gradients = reduce((loss, tape.gradient(loss, weights)))
    pairs = zip(weights, gradients, strict=True)
    update(weights, [weight - DENSE_RATE * gradient for weight, gradient in pairs])
    return loss


def _assign(variables, values) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
