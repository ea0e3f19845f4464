"""Sound from mel frames and a source that lends its phases.

Magnitudes of a short-time spectrum are estimated from the mel bands, and a few passes of Griffin
and Lim's algorithm (1984), from the phases of the source, make the spectrum consistent. What a
stretch of the sound is depends on a bounded stretch of frames, so that it can be made in pieces.
"""

import math

import numpy as np
import tensorflow as tf

from distill.spectra import hann_window
from wavenet.features import MelConvention, mel_filters

UPDATES = 20  # of the magnitudes; more change nothing that is heard
LEAST = 1e-9
MOMENTUM = 0.99  # Perraudin et al. 2013, "A fast Griffin-Lim algorithm"


class MelInversion:
    """Called with mel frames and a source; gives a sound with these frames.

    Args:
      mel: the convention of the frames.
      passes: estimates of the phase, at least 1: the first is the source's.
    """

    def __init__(self, mel: MelConvention, passes: int):
        self.mel, self.passes = mel, passes
        self._filters = mel_filters(mel)

    @property
    def side_frames(self) -> int:
        """Frames on either side of a stretch that its draft depends on."""
        reach = -(-self.mel.fft_size // (2 * self.mel.hop_samples)) + 1
        return 2 * reach * self.passes

    def __call__(self, frames, source):
        """The sound, float32 [batch, frames * hop].

        Args:
          frames: float32 [batch, frames, bands], `above_silence`.
          source: float32 [batch, frames * hop].
        """
        magnitudes, count = self.magnitudes(frames), tf.shape(frames)[1]
        spectrum = magnitudes * _phase(self._analysed(source, count))
        before = None
        for _ in range(self.passes - 1):
            now = self._analysed(self._synthesised(spectrum, count), count)
            faster = now if before is None else now + MOMENTUM * (now - before)
            spectrum, before = magnitudes * _phase(faster), now
        return self._synthesised(spectrum, count)

    def magnitudes(self, frames):
        """Magnitudes [batch, frames, bins] with these mel bands, complex64.

        Multiplicative updates for the Itakura-Saito divergence (Fevotte et al. 2009).
        """
        log = (1.0 - frames) * self.mel.silence
        bands = tf.exp(log if self.mel.log == "natural" else log * math.log(10.0))
        filters, across = self._filters, np.ascontiguousarray(self._filters.T)
        start = across / np.maximum(np.square(across).sum(1, keepdims=True), LEAST)
        bins = tf.maximum(tf.matmul(bands, start), 1e-6)
        for _ in range(UPDATES):
            made = tf.maximum(tf.matmul(bins, filters), LEAST)
            bins *= tf.matmul(bands / tf.square(made), across)
            bins /= tf.maximum(tf.matmul(1.0 / made, across), LEAST)
        return tf.cast(bins, tf.complex64)

    def _analysed(self, sound, count):
        """Spectra [batch, frames, bins], frame f around f * hop + hop / 2."""
        window, hop = self.mel.window_samples, self.mel.hop_samples
        padded = tf.pad(sound, [[0, 0], [self._left, window]])
        segments = tf.signal.frame(padded, window, hop)[:, :count]
        return tf.signal.rfft(segments * hann_window(window), [self.mel.fft_size])

    def _synthesised(self, spectrum, count):
        """The sound [batch, frames * hop] whose spectra are closest in the least squares."""
        window, hop = self.mel.window_samples, self.mel.hop_samples
        hann = hann_window(window)
        segments = tf.signal.irfft(spectrum, [self.mel.fft_size])[..., :window] * hann
        weights = tf.repeat(tf.constant(np.square(hann))[None], count, 0)
        total = tf.signal.overlap_and_add(segments, hop)
        weight = tf.signal.overlap_and_add(weights, hop)
        sound = total / tf.maximum(weight, 1e-3)
        return tf.pad(sound, [[0, 0], [0, window]])[:, self._left :][:, : count * hop]

    @property
    def _left(self) -> int:
        return self.mel.window_samples // 2 - self.mel.hop_samples // 2


def _phase(spectrum):
    size = tf.maximum(tf.abs(spectrum), LEAST)
    return spectrum / tf.cast(size, tf.complex64)
