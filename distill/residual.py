"""The residual's domain: turns flows that make a residual into a student that makes sound."""

from typing import NamedTuple

import tensorflow as tf

from distill.config import StudentConfig
from distill.source.pulses import PulseSource
from distill.synthesis import synthesise
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
        """Return the input of the gates [batch, samples, channels], and the samples' `Prediction`.

        Args:
          frames: [batch, frames, channels].
          asked: slice of all their samples; begins with a frame.
        """
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
