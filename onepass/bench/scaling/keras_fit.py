"""Several steps a call, against the fit of Keras: the same Keras model, optimiser and batches."""

import importlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from onepass.bench.report import Measures, Row
from onepass.bench.scaling.models import (
    DENSE_CLASSES,
    DENSE_INPUTS,
    DENSE_RATE,
    DENSE_ROWS,
    DENSE_UNITS,
    labelled_rows,
)
from onepass.bench.scaling.paired_timing import PairedTiming
from replicator import strategies
from replicator.runs.errors import UserError

LIBRARIES = {"Keras 3": "keras", "tf_keras": "tf_keras"}
UNIT = "ms/step"
BATCHES = 16  # different ones, over and over
LEAST_STEP_SECONDS = 1e-9  # what a difference of times cannot tell from nothing
Loop = Callable[[int], float]  # of so many steps


def own_title(count: int) -> str:
    """What the row of a replicator's steps is called."""
    return f"replicator, {_calls(count)}"


def peer_title(count: int) -> str:
    """What the row of Keras's own loop is called."""
    return f"fit, {_calls(count)}"


def _calls(count: int) -> str:
    return f"{count} {'step' if count == 1 else 'steps'} a call"


class Loops:
    """Keras's loop and the replicator's, each of many steps and of one call.

    seconds: of a step, the replicator's and Keras's: what many steps take longer than one call, so
    that what a loop needs to start is not counted.
    """

    def __init__(self, keras: Any, count: int, steps: int, least_seconds: float):
        whole = -(-steps // count) * count
        own, peer = own_loop(keras, count), fit_loop(keras, count)
        self._more_steps = whole - count
        self._many = PairedTiming(lambda: own(whole), lambda: peer(whole), least_seconds)
        self._one = PairedTiming(lambda: own(count), lambda: peer(count), least_seconds / 4)
        self.seconds = (0.0, 0.0)

    def prepare(self) -> None:
        """Makes the first calls, which compile."""
        self._one.prepare()
        self._many.prepare()

    def measure(self) -> tuple[float, float]:
        """`seconds`, measured anew."""
        many, one = self._many.measure(), self._one.measure()
        own, peer = (
            max((a - b) / self._more_steps, LEAST_STEP_SECONDS)
            for a, b in zip(many, one, strict=True)
        )
        self.seconds = own, peer
        return self.seconds


def measures_of(
    counts: tuple[int, ...], steps: int, least_seconds: float
) -> tuple[list[Loops], Measures]:
    """What is to be prepared, and a row and a function to measure it for every library and count.

    steps: of one fit, rounded up to whole calls.
    """
    prepared: list[Loops] = []
    measures: Measures = []
    for size, module in LIBRARIES.items():
        keras = importlib.import_module(module)
        if keras.backend.backend() != "tensorflow":
            raise UserError("Keras must run on TensorFlow here: set KERAS_BACKEND=tensorflow.")
        for count in counts:
            loops = Loops(keras, count, steps, least_seconds)
            prepared.append(loops)
            measures += _rows_of(size, count, loops)
    return prepared, measures


def _rows_of(size: str, count: int, loops: Loops) -> Measures:
    own = Row(own_title(count), size, DENSE_ROWS, UNIT, peer_title(count))
    peer = Row(peer_title(count), size, DENSE_ROWS, UNIT)
    return [
        (own, lambda: 1e3 * loops.measure()[0]),
        (peer, lambda: 1e3 * loops.seconds[1]),
    ]


def own_loop(keras: Any, count: int) -> Loop:
    """Steps of a Keras model in a replicator, `count` a call; gives the last loss."""
    replicator = strategies.single()
    with replicator.scope():
        model, loss_of, plain = _compiled_parts(keras)
        plain.build(model.trainable_variables)
        optimizer = replicator.wrap_optimizer(plain)

    def step(batch):
        rows, labels = batch
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(rows, training=True))
        optimizer.minimize(loss, model.trainable_variables, tape)
        return loss

    call = replicator.compile(step, count)
    iterator = iter(replicator.batches(labelled_rows(BATCHES)))

    def run(steps: int) -> float:
        for _ in range(steps // count):
            loss = call(iterator)
        return float(loss)

    return run


def fit_loop(keras: Any, count: int) -> Loop:
    """Steps of `fit` of a Keras model, `count` an execution; gives the mean loss."""
    model, loss_of, optimizer = _compiled_parts(keras)
    # XLA off, as in the replicator's step: Keras would compile with it on a GPU only.
    model.compile(optimizer, loss_of, steps_per_execution=count, jit_compile=False)
    batches = labelled_rows(BATCHES)

    def run(steps: int) -> float:
        history = model.fit(batches, steps_per_epoch=steps, shuffle=False, verbose=0)
        return history.history["loss"][-1]

    return run


def _compiled_parts(keras: Any) -> tuple[Any, Any, Any]:
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input([DENSE_INPUTS]),
            layers.Dense(DENSE_UNITS, activation="relu"),
            layers.Dense(DENSE_UNITS, activation="relu"),
            layers.Dense(DENSE_CLASSES),
        ]
    )
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return model, loss_of, keras.optimizers.Adam(DENSE_RATE)
