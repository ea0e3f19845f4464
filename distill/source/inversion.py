"""Sound from mel frames and a source that lends its phases.

Passes of Griffin and Lim's algorithm (1984), from the phases of the source, with one difference:
what is kept from pass to pass is the mel, not an estimate of the magnitudes, which follow the sound
as far as the mel lets them. A span of the sound depends on a bounded span of frames,
so that it can be made in pieces.
"""

import math

import numpy as np
import tensorflow as tf

from distill.spectra import hann_window
from wavenet.features import MelConvention, mel_filters

FIRST_UPDATES, UPDATES = 20, 2  # of the magnitudes, at first and in every pass
LEAST, LEAST_BIN = 1e-9, 1e-6
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
        """Frames on either side of a span of samples that its draft depends on."""
        width, hop = self.mel.fft_size, self.mel.hop_samples
        return -(-width // (2 * hop)) + (self.passes - 1) * -(-width // hop)

    def __call__(self, frames, source):
        """Return the sound, float32 [batch, frames * hop].

        Args:
          frames: float32 [batch, frames, bands], `above_silence`.
          source: float32 [batch, frames * hop].
        """
        bands, count = self._bands(frames), tf.shape(frames)[1]
        filters = tf.constant(self._filters)  # once for all updates: a saved graph holds each
        bins = self.magnitudes(bands, self._flat(bands), FIRST_UPDATES, filters)
        spectrum = tf.cast(bins, tf.complex64) * _phase(self._analysed(source, count))

        def one_pass(spectrum, before):
            now = self._analysed(self._synthesised(spectrum, count), count)
            faster = now if before is None else now + MOMENTUM * (now - before)
            bins = self.magnitudes(bands, tf.abs(now), UPDATES, filters)
            return tf.cast(bins, tf.complex64) * _phase(faster), now

        if self.passes > 1:
            first = one_pass(spectrum, None)
            frames_vary = tf.TensorShape([None, None, spectrum.shape[-1]])
            spectrum, _ = tf.while_loop(  # unrolled, most of what starts a server is tracing it
                lambda *_: True,
                one_pass,
                first,
                shape_invariants=(frames_vary, frames_vary),
                maximum_iterations=self.passes - 2,
            )
        return self._synthesised(spectrum, count)

    def magnitudes(self, bands, bins, updates: int, filters=None):
        """Magnitudes [batch, frames, bins] near `bins` whose mel is nearer to `bands`.

        Multiplicative updates for the Itakura-Saito divergence (Fevotte et al. 2009).

        Args:
          bands: [batch, frames, bands], magnitudes of the mel bands.
          bins: [batch, frames, bins], where to start.
          updates: how many.
          filters: [bins, bands], those of the convention, if they are a tensor already.
        """
        filters = tf.constant(self._filters) if filters is None else filters
        across = tf.transpose(filters)
        bins = tf.maximum(bins, LEAST_BIN)
        for _ in range(updates):
            made = tf.maximum(tf.matmul(bins, filters), LEAST)
            bins *= tf.matmul(bands / tf.square(made), across)
            bins /= tf.maximum(tf.matmul(1.0 / made, across), LEAST)
        return bins

    def _bands(self, frames):
        log = (1.0 - frames) * self.mel.silence
        return tf.exp(log if self.mel.log == "natural" else log * math.log(10.0))

    def _flat(self, bands):
        """Return a first guess of the magnitudes: each band spread over its filter."""
        across = np.ascontiguousarray(self._filters.T)
        return tf.matmul(bands, across / np.maximum(np.square(across).sum(1, keepdims=True), LEAST))

    def _analysed(self, sound, count):
        """Spectra [batch, frames, bins], frame f around f * hop + hop / 2."""
        window, hop = self.mel.window_samples, self.mel.hop_samples
        padded = tf.pad(sound, [[0, 0], [self._left, window]])
        segments = tf.signal.frame(padded, window, hop)[:, :count]
        return tf.signal.rfft(segments * hann_window(window), [self.mel.fft_size])

    def _synthesised(self, spectrum, count):
        """Return the sound [batch, frames * hop] of the closest spectra in least squares."""
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
