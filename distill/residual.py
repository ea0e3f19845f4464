"""The residual domain, in which flows generate a residual and linear prediction makes it sound.

    x_t = sum_k a_k x_(t-k) + e_t                         (LPCNet, arXiv 1810.11846, section 3.1)

The coefficients are constant within a row of samples. A row of the wave is therefore a triangular
matrix times the residual plus another matrix times the K samples before the row, and only those K
samples pass from row to row. The map is triangular with diagonal 1: the wave has the density of e.
"""

import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from distill.config import SOURCE_SIDE, StudentConfig
from onepass.foundation.rules import UserError
from onepass.likelihoods.affine import FlowOutput
from onepass.likelihoods.noise import Initial
from wavenet.conditioner import REFERENCE_HZ, Conditioner
from wavenet.config import MelConvention
from wavenet.network import interpolate_frames

LEVEL = 3.0  # root mean square of the pulses, which must stand out from the noise's 1.8
TOP_SHARE = 0.47  # harmonics above this share of the sample rate are left out


class Prediction(NamedTuple):
    """Linear prediction x_t = sum_k a_k x_(t-k) + g e_t, constant within each row of samples."""

    coefficients: tf.Tensor
    """The a_k, [batch, rows, K]."""
    log_gain: tf.Tensor
    """The log of g, [batch, rows]."""


class Condition(NamedTuple):
    """The condition of the flows.

    Attributes:
      channels: [batch, bunches, channels], the gates' condition at each bunch's first sample.
      source: the signal that is added to the noise, float32 [batch, time].
      prediction: the linear prediction that turns the flows' output, a residual, into a wave.
      held: [batch, rows, channels], the gates' first condition channels, which are constant within
        a row of `row_samples` samples.
    """

    channels: tf.Tensor | None = None
    source: tf.Tensor | None = None
    prediction: Prediction | None = None
    held: tf.Tensor | None = None

    def add_source(self, noise: tf.Tensor) -> tf.Tensor:
        """Return the noise with the source added."""
        return noise if self.source is None else noise + tf.cast(self.source, noise.dtype)

    def move_source(self, flowed: FlowOutput) -> FlowOutput:
        """Return the flows' output for noise plus source, with the source moved to the location."""
        if self.source is None:
            return flowed
        source = tf.cast(self.source, flowed.output.dtype)
        return flowed._replace(location=flowed.location + source * tf.exp(flowed.log_scale))


class ResidualDomain(tf.Module):
    """The conditioner, the linear prediction and the source of a student of residuals.

    Given the preceding noise, e_t is logistic or normal with the flows' location mu and scale s.
    Then x_t is too, with location p_t + g mu, where p_t is the prediction, and scale g s; density
    and entropy have closed forms.
    """

    def __init__(self, config: StudentConfig, initial: Initial, mel: MelConvention) -> None:
        super().__init__()
        if not config.prediction_order or not config.conditioner_units:
            raise UserError(
                "`prediction_order` and `conditioner_units` must be given for the residual."
            )
        self.config = config
        self.conditioner = Conditioner(config, initial, mel)
        self._source = None
        if config.source == "pulses":
            rate, hop = config.sample_rate_hz, config.hop_samples
            self._source = PulseSource(rate, hop, config.bunch_samples)
        # On either side of a span of samples, which its condition depends on.
        reached = self.conditioner.reader.side_frames if self.conditioner.reader else 0
        self.side_frames = max(self.conditioner.side_frames, reached + PulseSource.side_frames)

    def condition(
        self, frames: tf.Tensor, phase_cycles: tf.Tensor, asked: slice
    ) -> tuple[Condition, tf.Tensor]:
        """Return the condition of the span `asked`, and the phase after it, given that before."""
        made, length = self.conditioner(frames), self.config.row_samples
        rows = slice(asked.start // length, -(-asked.stop // length))
        prediction = Prediction(
            tf.stop_gradient(made.coefficients[:, rows]), tf.stop_gradient(made.log_gain[:, rows])
        )
        source = channels = None
        if self._source is not None:
            source, channels, phase_cycles = self._source(made.pitch, phase_cycles, asked)
        return Condition(channels, source, prediction, made.local[:, rows]), phase_cycles

    def wave(
        self, flowed: FlowOutput, prediction: Prediction, tail: tf.Tensor
    ) -> tuple[FlowOutput, tf.Tensor]:
        """Return the wave with its density, and its last K samples, given the K of `tail`."""
        length, dtype = self.config.row_samples, flowed.output.dtype
        time = tf.shape(flowed.output)[1]
        log_gain = tf.repeat(tf.cast(prediction.log_gain, dtype), length, 1)[:, :time]
        gain = tf.exp(log_gain)
        coefficients = tf.cast(prediction.coefficients, dtype)
        wave, tail = synthesise(gain * flowed.output, coefficients, tail, length)
        location = wave - gain * (flowed.output - flowed.location)
        return FlowOutput(wave, location, flowed.log_scale + log_gain), tail


def synthesise(
    residual: tf.Tensor, coefficients: tf.Tensor, tail: tf.Tensor, row_samples: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the wave, [batch, time], and its last K samples, [batch, K], for the next call.

    Only the residual gets a gradient. The coefficients are [batch, rows, K], of which the last row
    may be shorter; the tail, the preceding K samples, oldest first.
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


def row_matrices(coefficients: tf.Tensor, row_samples: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Return each row's matrices [..., row_samples, row_samples] and [..., row_samples, K].

    A row of the wave is the first matrix times its residual plus the second matrix times the K
    samples before the row.
    """
    order = coefficients.shape[-1]
    by_lag = tf.concat([tf.ones_like(coefficients[..., :1]), -coefficients], -1)
    time = tf.range(row_samples)
    among = _at_lag(by_lag, time[:, None] - time[None])
    before = _at_lag(by_lag, time[:, None] + order - tf.range(order)[None])
    identity = tf.constant(np.eye(row_samples), among.dtype)
    inverse = tf.linalg.triangular_solve(among, tf.broadcast_to(identity, tf.shape(among)))
    return inverse, -tf.matmul(inverse, before)


def _at_lag(by_lag: tf.Tensor, lags: tf.Tensor) -> tf.Tensor:
    """Return the values at each lag, [..., rows, columns]; 0 for lags outside [0, K]."""
    known = (lags >= 0) & (lags < by_lag.shape[-1])
    values = tf.gather(by_lag, tf.where(known, lags, 0), axis=-1)
    return tf.where(known, values, tf.zeros_like(values))


def _tails(within: tf.Tensor, outer: tf.Tensor, tail: tf.Tensor) -> tf.Tensor:
    order = outer.shape[-1]
    from_wave = tf.pad(within, [[0, 0], [0, 0], [order, 0]])[..., -order:]
    shape = tf.concat([tf.shape(outer)[:-2], [order, order]], 0)
    shifted = tf.broadcast_to(tf.constant(np.eye(order), outer.dtype), shape)
    from_tail = tf.concat([shifted, outer], -2)[..., -order:, :]

    def following(before: tf.Tensor, row: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        matrix, vector = row
        return tf.ensure_shape(tf.linalg.matvec(matrix, before) + vector, before.shape)

    by_row = (tf.transpose(from_tail, [1, 0, 2, 3]), tf.transpose(from_wave, [1, 0, 2]))
    after = tf.scan(following, by_row, initializer=tail)
    return tf.transpose(tf.concat([tail[None], after[:-1]], 0), [1, 0, 2])


class PulseSource:
    """The source of a residual: pulses at F0 where voiced, 0 elsewhere (arXiv 1810.11946).

    It depends only on the frames, so the density given the frames stays exact. The phase is a
    running sum, carried from chunk to chunk.
    """

    side_frames = 2  # on either side of a span

    def __init__(self, sample_rate_hz: int, hop_samples: int, bunch_samples: int = 1) -> None:
        self._rate_hz, self._hop, self._bunch = sample_rate_hz, hop_samples, bunch_samples

    def __call__(
        self, pitch: tf.Tensor, phase_cycles: tf.Tensor, asked: slice
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return the source [batch, samples], its channels, and the phase after it [batch].

        `pitch` is log2(F0 / 200 Hz) and the probability of voicing, [batch, frames, 2]. The
        channels [batch, bunches, 2 SOURCE_SIDE + 2] are the source's samples around the first
        sample of each bunch, without the factor `LEVEL`, and the voicing.
        """
        octaves = upsample_frames(pitch[..., 0], self._hop)
        voiced = upsample_frames(tf.cast(pitch[..., 1] > 0.5, pitch.dtype), self._hop)
        f0_hz = REFERENCE_HZ * tf.pow(tf.constant(2.0, pitch.dtype), octaves)
        phase = running_phase(f0_hz, self._rate_hz, phase_cycles, asked.start)
        pulses = pulse_train(phase, tf.cast(f0_hz, tf.float32), self._rate_hz)
        pulses = voiced * tf.cast(pulses, voiced.dtype)
        around = _taps(pulses, SOURCE_SIDE, asked, self._bunch)
        channels = tf.concat([around, voiced[:, asked][:, :: self._bunch, None]], -1)
        return LEVEL * pulses[:, asked], channels, phase[:, asked.stop - 1]


def _taps(sound: tf.Tensor, side: int, asked: slice, every: int) -> tf.Tensor:
    """Return samples around every `every`-th one, [batch, count, 2 side + 1], 0 beyond the ends."""
    width, count = 2 * side + 1, -(-(asked.stop - asked.start) // every)
    parts = -(-width // every)  # parts of a window, each as long as a step
    padded = tf.pad(sound, [[0, 0], [side, side + (parts + 1) * every]])
    steps = padded[:, asked.start : asked.start + (count + parts - 1) * every]
    steps = tf.reshape(steps, [tf.shape(sound)[0], -1, every])
    return tf.concat([steps[:, i : i + count] for i in range(parts)], -1)[..., :width]


def upsample_frames(frames: tf.Tensor, hop: int) -> tf.Tensor:
    """Interpolate values [batch, frames] linearly between the frames' centres, at every sample."""
    beyond = tf.concat([frames[:, :1], frames, frames[:, -1:]], 1)
    return interpolate_frames(beyond[..., None], hop)[..., 0]


def running_phase(
    f0_hz: tf.Tensor, sample_rate_hz: int, phase_cycles: tf.Tensor, at: int | tf.Tensor
) -> tf.Tensor:
    """Return the phase, cycles in [0, 1), float64 [batch, time], given that before `at`."""
    total = tf.cumsum(tf.cast(f0_hz, tf.float64) / sample_rate_hz, 1)
    offset = phase_cycles - tf.pad(total, [[0, 0], [1, 0]])[:, at]
    phase = total + offset[:, None]
    return phase - tf.floor(phase)


def pulse_train(phase_cycles: tf.Tensor, f0_hz: tf.Tensor, sample_rate_hz: int) -> tf.Tensor:
    """Return sqrt(2 / N) sum_{k=1..N} cos(2 pi k phase_cycles), float32 [batch, time].

    This is the Dirichlet kernel, where N is the number of harmonics up to 0.47 of the sample rate;
    its mean square is 1.
    """
    count = tf.floor(TOP_SHARE * sample_rate_hz / f0_hz)
    x = tf.cast(phase_cycles - tf.round(phase_cycles), tf.float32) * math.pi
    near = tf.abs(x) < 1e-4
    safe = tf.where(near, tf.ones_like(x), x)
    total = tf.sin((2.0 * count + 1.0) * safe) / (2.0 * tf.sin(safe)) - 0.5
    return tf.where(near, count, total) * tf.sqrt(2.0 / tf.maximum(count, 1.0))
