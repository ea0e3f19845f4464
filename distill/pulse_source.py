"""The source of a residual: pulses at F0 where voiced, nothing elsewhere (arXiv 1810.11946).

F0 is estimated from the frames. The phase is a running sum, carried from chunk to chunk.
"""

import math

import tensorflow as tf

from distill.config import SOURCE_SIDE
from wavenet.pitch_reader import REFERENCE_HZ

LEVEL = 3.0  # root mean square of the pulses, that of the noise being 1.8: they must stand out
TOP_SHARE = 0.47  # of the sample rate; harmonics above are left out


class PulseSource:
    """A function of the frames alone, so that the density given the frames stays exact."""

    side_frames = 2  # on either side of a span of samples

    def __init__(self, sample_rate_hz: int, hop_samples: int):
        self._rate_hz, self._hop = sample_rate_hz, hop_samples

    def __call__(self, pitch, phase_cycles, asked: slice):
        """Return the source [batch, samples], its channels, and the phase after it [batch].

        The channels [batch, samples, 2 SOURCE_SIDE + 2] are the source's samples around each
        moment, over their level, and the voicing.

        Args:
          pitch: [batch, frames, 2], log2(F0 / 200 Hz) and the probability of voicing.
          phase_cycles: float64 [batch], the phase of the voice before the requested samples.
          asked: slice of all the frames' samples.
        """
        octaves = upsampled(pitch[..., 0], self._hop)
        voiced = upsampled(tf.cast(pitch[..., 1] > 0.5, pitch.dtype), self._hop)
        f0_hz = REFERENCE_HZ * tf.pow(tf.constant(2.0, pitch.dtype), octaves)
        phase = running_phase(f0_hz, self._rate_hz, phase_cycles, asked.start)
        pulses = pulse_train(phase, tf.cast(f0_hz, tf.float32), self._rate_hz)
        pulses = voiced * tf.cast(pulses, voiced.dtype)
        channels = tf.concat([_taps(pulses, SOURCE_SIDE), voiced[..., None]], -1)
        return LEVEL * pulses[:, asked], channels[:, asked], phase[:, asked.stop - 1]


def _taps(sound, side: int):
    """Return the samples around each, [batch, time, 2 side + 1], zeros beyond the ends."""
    padded = tf.pad(sound, [[0, 0], [side, side]])
    time = tf.shape(sound)[1]
    return tf.stack([padded[:, i : i + time] for i in range(2 * side + 1)], -1)


def upsampled(frames, hop: int):
    """Return [batch, frames * hop] of [batch, frames], linear between the frames' centres."""
    before = tf.concat([frames[:, :1], frames[:, :-1]], 1)
    after = tf.concat([frames[:, 1:], frames[:, -1:]], 1)
    offset = (tf.range(hop, dtype=frames.dtype) + 0.5) / hop - 0.5
    left, right = tf.nn.relu(-offset), tf.nn.relu(offset)
    parts = (
        before[..., None] * left
        + frames[..., None] * (1.0 - left - right)
        + after[..., None] * right
    )
    return tf.reshape(parts, [tf.shape(frames)[0], -1])


def running_phase(f0_hz, sample_rate_hz: int, phase_cycles, at: int | tf.Tensor):
    """Return the phase in cycles, float64 [batch, time], given that before sample `at`, [batch]."""
    total = tf.cumsum(tf.cast(f0_hz, tf.float64) / sample_rate_hz, 1)
    offset = phase_cycles - tf.pad(total, [[0, 0], [1, 0]])[:, at]
    phase = total + offset[:, None]
    return phase - tf.floor(phase)


def pulse_train(phase_cycles, f0_hz, sample_rate_hz: int):
    """Return sqrt(2 / N) sum_{k=1..N} cos(2 pi k phase_cycles), float32 [batch, time].

    This is Dirichlet's kernel, where N is the number of harmonics up to 0.47 of the sample rate;
    the mean square is 1.
    """
    count = tf.floor(TOP_SHARE * sample_rate_hz / f0_hz)
    x = tf.cast(phase_cycles - tf.round(phase_cycles), tf.float32) * math.pi
    near = tf.abs(x) < 1e-4
    safe = tf.where(near, tf.ones_like(x), x)
    total = tf.sin((2.0 * count + 1.0) * safe) / (2.0 * tf.sin(safe)) - 0.5
    return tf.where(near, count, total) * tf.sqrt(2.0 / tf.maximum(count, 1.0))
