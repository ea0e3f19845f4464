"""The source of a residual: pulses at F0 where voiced, nothing elsewhere (arXiv 1810.11946)."""

import tensorflow as tf

from distill.config import DRAFT_SIDE
from distill.source.draft import taps
from distill.source.excitation import pulse_train, running_phase, upsampled
from wavenet.pitch_reader import REFERENCE_HZ

LEVEL = 3.0  # root mean square of the pulses, that of the noise being 1.8: they must stand out


class PulseSource:
    """A function of the frames alone, so that the density given the frames stays exact.

    Args:
      sample_rate_hz: of the sound.
      hop_samples: of the frames.
    """

    side_frames = 2  # on either side of a span of samples

    def __init__(self, sample_rate_hz: int, hop_samples: int):
        self._rate_hz, self._hop = sample_rate_hz, hop_samples

    def __call__(self, pitch, phase_cycles, asked: slice):
        """Return the source [batch, samples], its channels, and the phase after it [batch].

        The channels [batch, samples, 2 DRAFT_SIDE + 2] are the source's samples around each moment,
        over their level, and the voicing.

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
        channels = tf.concat([taps(pulses, DRAFT_SIDE), voiced[..., None]], -1)
        return LEVEL * pulses[:, asked], channels[:, asked], phase[:, asked.stop - 1]
