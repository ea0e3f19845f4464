"""A first draft of speech from its mel frames, for the flows to finish.

A source lends its phases to the mel's magnitudes: pulses, at an F0 that is read off the frames,
where voiced, and noise elsewhere (as in Wang et al. 2019, neural source-filter models, arXiv
1810.11946). The draft is a function of the frames alone, hence a part of the condition: the density
of the student given the frames stays exact.
"""

import tensorflow as tf

from distill.config import DRAFT_SIDE, StudentConfig
from distill.source.excitation import pulse_train, running_phase, upsampled
from distill.source.inversion import MelInversion
from likelihoods import noise as counter_noise
from likelihoods.initial import Initial
from wavenet.features import MelConvention
from wavenet.pitch_reader import REFERENCE_HZ, PitchReader

NOISE = 0.1  # of the noise in voiced stretches, the pulses having mean square 1
SEED = 0x0D2AF7  # of that noise: the draft of given frames is always the same
GAIN = 4.0  # of the draft in the condition; speech lies around a tenth of full scale


class Drafter(tf.Module):
    """Makes drafts; its reader of F0 is the only part that learns.

    Args:
      config: `draft_passes` and the sample rate.
      initial: of the reader's weights.
      mel: the convention of the frames, the first channels of those given.
    """

    def __init__(self, config: StudentConfig, initial: Initial, mel: MelConvention, name="drafter"):
        super().__init__(name=name)
        self.reader = PitchReader(config.feature_channels, initial, padded=True)
        self._inversion = MelInversion(mel, config.draft_passes)
        self._mel, self._rate_hz = mel, config.sample_rate_hz

    @property
    def side_frames(self) -> int:
        """Frames on either side of a span of samples that its draft depends on."""
        return self.reader.side_frames + self._inversion.side_frames + 2

    def __call__(self, frames, phase_cycles, asked: slice, start: int):
        """Return the draft of the requested samples [batch, samples], its channels, the phase.

        Args:
          frames: float32 [batch, frames, channels].
          phase_cycles: float64 [batch], the phase of the voice before the samples asked for.
          asked: of all the frames' samples.
          start: position of the first of all samples in the whole sound.
        """
        hop = self._mel.hop_samples
        pitch = self.reader.pitch(frames)
        octaves, voiced = (upsampled(pitch[..., i], hop) for i in range(2))
        f0_hz = REFERENCE_HZ * tf.pow(2.0, octaves)
        phase = running_phase(f0_hz, self._rate_hz, phase_cycles, asked.start)
        pulses = pulse_train(phase, f0_hz, self._rate_hz)
        time = tf.shape(pulses)[1] if pulses.shape[1] is None else pulses.shape[1]
        noise = counter_noise.normal(SEED, [0], start, time)[..., 0]
        source = pulses * voiced + noise * (1.0 - voiced + NOISE)
        draft = self._inversion(frames[..., : self._mel.bands], source)
        channels = tf.concat([GAIN * taps(draft, DRAFT_SIDE), voiced[..., None]], -1)
        return draft[:, asked], channels[:, asked], phase[:, asked.stop - 1]


def taps(sound, side: int):
    """Return the samples around each, [batch, time, 2 side + 1], zeros beyond the ends."""
    padded = tf.pad(sound, [[0, 0], [side, side]])
    time = tf.shape(sound)[1]
    return tf.stack([padded[:, i : i + time] for i in range(2 * side + 1)], -1)
