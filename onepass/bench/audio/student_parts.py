"""What a second of a student's sound is made of: noise, conditioner, source and filter.

All but the flows of a student in the residual's domain (see `distill.residual`).
"""

import functools
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from distill.cpu import recursion
from distill.residual import Prediction
from distill.student import ParallelWaveNet

Part = Callable[[], object]


def parts(student: ParallelWaveNet, samples: int, batch: int) -> dict[str, Callable[[], float]]:
    """A function for each part that runs it once and returns its seconds.

    Args:
      student: in the residual's domain.
      samples: of each sound. batch: sounds.
    """
    config = student.config
    rng = np.random.default_rng(0)  # not zeros: a processor may run faster on them
    frames = rng.random([batch, samples // config.hop_samples, config.feature_channels], np.float32)
    residual = rng.logistic(size=(batch, samples)).astype(np.float32)
    rows = samples // config.row_samples
    coefficients = np.zeros([batch, rows, config.prediction_order], np.float32)
    prediction = Prediction(coefficients, np.zeros([batch, rows], np.float32))
    tail = coefficients[:, 0]
    conditioner, source = _graphs(student, samples)
    timed: dict[str, Part] = {
        "noise": lambda: student.noise(0, list(range(batch)), 0, samples).numpy(),
        "conditioner": lambda: conditioner(frames),
        "source": lambda: source(frames),
        "filter": lambda: recursion.wave(residual, prediction, tail, config.row_samples),
    }
    return {name: functools.partial(_seconds, part) for name, part in timed.items()}


def _graphs(student: ParallelWaveNet, samples: int) -> tuple[Callable, Callable]:
    """The conditioner with the prediction, and the source with F0 and voicing, of frames."""
    residual, asked = student.residual, slice(0, samples)
    if residual is None:
        raise ValueError("`student` must be in the residual's domain.")

    @tf.function(autograph=False)
    def conditioner(frames):
        return residual.condition(frames, asked)

    @tf.function(autograph=False)
    def source(frames):
        phase = tf.zeros([tf.shape(frames)[0]], tf.float64)
        made, channels, after = residual.source(frames, phase, asked)
        return [made, channels, after] if made is not None else [after]

    return conditioner, source


def _seconds(part: Part) -> float:
    start = time.perf_counter()
    part()
    return time.perf_counter() - start
