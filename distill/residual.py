"""The residual's domain: turns flows that make a residual into a student that makes sound.

    x_t = sum_k a_k x_(t-k) + e_t                         (LPCNet, arXiv 1810.11846, section 3.1)

The coefficients are constant for a row of samples. Within a row the wave is then a triangular
matrix times the residual plus another times the K samples before the row, so that only those K pass
from row to row. It is a triangular map with diagonal 1: the density of the wave is that of e.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from distill.config import StudentConfig
from distill.pulse_source import PulseSource
from likelihoods.affine import FlowOutput
from likelihoods.initial import Initial
from replicator.runs.errors import UserError
from wavenet.conditioner import Conditioner
from wavenet.features import MelConvention


class Prediction(NamedTuple):
    """Linear prediction by rows of samples: x_t = sum_k a_k x_(t-k) + g e_t."""

    coefficients: tf.Tensor
    """[batch, rows, K]."""
    log_gain: tf.Tensor
    """[batch, rows], the log of g."""


class ResidualDomain(tf.Module):
    """The teacher's conditioner and linear prediction, and a source.

    Given the noise before, e_t is logistic or normal with the flows' location mu and scale s; then
    so is x_t, with location p_t + g mu and scale g s. Density and entropy stay closed.
    """

    def __init__(
        self, config: StudentConfig, initial: Initial, mel: MelConvention, name="residual"
    ):
        super().__init__(name=name)
        if not config.prediction_order or not config.conditioner_units:
            raise UserError(
                "`prediction_order` and `conditioner_units` must be given for the residual."
            )
        self.config = config
        self.conditioner = Conditioner(config, initial, mel)
        self._source = None
        if config.source == "pulses":
            self._source = PulseSource(config.sample_rate_hz, config.hop_samples)

    @property
    def side_frames(self) -> int:
        """Frames on either side of a span of samples that its condition depends on."""
        reader = self.conditioner.reader
        reached = reader.side_frames if reader else 0
        return max(self.conditioner.side_frames, reached + PulseSource.side_frames)

    def condition(self, frames, asked: slice):
        """Return the input of the gates [batch, samples, channels], and their `Prediction`."""
        made, length = self.conditioner(frames), self.config.row_samples
        rows = slice(asked.start // length, -(-asked.stop // length))
        local = tf.repeat(made.local, length, 1)[:, asked]
        prediction = Prediction(made.coefficients[:, rows], made.log_gain[:, rows])
        return local, Prediction(*map(tf.stop_gradient, prediction))

    def source(self, frames, phase_cycles, asked: slice):
        """Return the result of `PulseSource`; without a source None and the same phase."""
        if self._source is None:
            empty = tf.zeros([tf.shape(frames)[0], asked.stop - asked.start, 0])
            return None, empty, phase_cycles
        return self._source(self.conditioner.pitch(frames), phase_cycles, asked)

    def wave(
        self, flowed: FlowOutput, prediction: Prediction, tail
    ) -> tuple[FlowOutput, tf.Tensor]:
        """Return the wave with its density, and its last K samples [batch, K]."""
        length, dtype = self.config.row_samples, flowed.output.dtype
        time = tf.shape(flowed.output)[1]
        log_gain = tf.repeat(tf.cast(prediction.log_gain, dtype), length, 1)[:, :time]
        gain = tf.exp(log_gain)
        coefficients = tf.cast(prediction.coefficients, dtype)
        wave, tail = synthesise(gain * flowed.output, coefficients, tail, length)
        location = wave - gain * (flowed.output - flowed.location)
        return FlowOutput(wave, location, flowed.log_scale + log_gain), tail


def synthesise(residual, coefficients, tail, row_samples: int):
    """Return the wave, [batch, time], and its last K samples, [batch, K], for the next call.

    A gradient reaches the residual, and not the coefficients.

    Args:
      residual: [batch, time], in units of the wave.
      coefficients: [batch, rows, K], whose last row may have fewer samples than the others.
      tail: [batch, K], the samples before the first, oldest first.
      row_samples: samples per row.
    """
    time, rows = tf.shape(residual)[1], tf.shape(coefficients)[1]
    coefficients = tf.cast(tf.stop_gradient(coefficients), residual.dtype)
    inner, outer = (tf.stop_gradient(m) for m in row_matrices(coefficients, row_samples))
    padded = tf.pad(residual, [[0, 0], [0, rows * row_samples - time]])
    within = tf.linalg.matvec(inner, tf.reshape(padded, [-1, rows, row_samples]))
    tails = _tails(within, outer, tail)
    wave = tf.reshape(within + tf.linalg.matvec(outer, tails), [-1, rows * row_samples])[:, :time]
    order = coefficients.shape[-1]
    joined = tf.concat([tail, wave], 1)
    return wave, joined[:, tf.shape(joined)[1] - order :]


def row_matrices(coefficients, row_samples: int):
    """Return [..., row_samples, row_samples] and [..., row_samples, K] of each row.

    A row of the wave is the first matrix times its residual plus the second times the K samples
    before.
    """
    order = coefficients.shape[-1]
    by_lag = tf.concat([tf.ones_like(coefficients[..., :1]), -coefficients], -1)
    time = tf.range(row_samples)
    among = _at_lag(by_lag, time[:, None] - time[None])
    before = _at_lag(by_lag, time[:, None] + order - tf.range(order)[None])
    identity = tf.constant(np.eye(row_samples), among.dtype)
    inverse = tf.linalg.triangular_solve(among, tf.broadcast_to(identity, tf.shape(among)))
    return inverse, -tf.matmul(inverse, before)


def _at_lag(by_lag, lags):
    """Return the values at each lag, [..., rows, columns], zero outside 0 .. K."""
    known = (lags >= 0) & (lags < by_lag.shape[-1])
    values = tf.gather(by_lag, tf.where(known, lags, 0), axis=-1)
    return tf.where(known, values, tf.zeros_like(values))


def _tails(within, outer, tail):
    """Return the K samples before every row, [batch, rows, K]."""
    order = outer.shape[-1]
    from_wave = tf.pad(within, [[0, 0], [0, 0], [order, 0]])[..., -order:]
    shape = tf.concat([tf.shape(outer)[:-2], [order, order]], 0)
    shifted = tf.broadcast_to(tf.constant(np.eye(order), outer.dtype), shape)
    from_tail = tf.concat([shifted, outer], -2)[..., -order:, :]

    def following(before, row):
        matrix, vector = row
        return tf.ensure_shape(tf.linalg.matvec(matrix, before) + vector, before.shape)

    by_row = (tf.transpose(from_tail, [1, 0, 2, 3]), tf.transpose(from_wave, [1, 0, 2]))
    after = tf.scan(following, by_row, initializer=tail)
    return tf.transpose(tf.concat([tail[None], after[:-1]], 0), [1, 0, 2])
