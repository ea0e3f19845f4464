"""Power losses: a student's sound must have the spectrum of the recording, whatever its phase.

van den Oord et al. 2017: || phi(g(z, c)) - phi(y) ||^2 with phi(x) = |STFT(x)|^2. The
windows are Hann windows, because side lobes would otherwise hide high-frequency noise. Errors of
powers and magnitudes are relative to the energy of the recording plus `SILENT`: clips with far more
energy than `SILENT` have equal weight, and quieter clips count less. `squared_loss` uses the energy
of averaged power spectra, for which noise at -50 dB of full scale is quiet (0.008) and noise at -30
dB is not (80); `magnitude_loss` and `multi_loss` sum over frames, and for them both are loud.
"""

from collections.abc import Iterator

import tensorflow as tf

from distill.spectra import magnitudes

# FFT size, hop and window in samples (Yamamoto et al. 2020, arXiv 1910.11480, table 1).
RESOLUTIONS = ((1024, 120, 600), (2048, 240, 1200), (512, 50, 240))
WINDOW, HOP = 1024, 256  # in samples, for the losses with one resolution
LOWEST = 1e-4  # lower bound of compared magnitudes: a 16-bit step under a Hann window of 600
SILENT = 1.0  # energy added to the recording's, so that silent recordings hardly count


def squared_loss(sound: tf.Tensor, recorded: tf.Tensor) -> tf.Tensor:
    """Return the relative squared error of the mean power spectra of sounds, [batch, 1024 or more].

    It is || mean_t |S|^2 - mean_t |S'|^2 ||^2 / || mean_t |S|^2 ||^2, the loss of the paper, which
    mostly measures the level.
    """
    drawn, target = (tf.reduce_mean(tf.square(m), 1) for m in _spectra(sound, recorded))
    return _relative(drawn, target, [1])


def magnitude_loss(sound: tf.Tensor, recorded: tf.Tensor) -> tf.Tensor:
    """Return || |S| - |S'| ||^2 / || |S| ||^2 over all frames, a scalar (Ping et al. 2018)."""
    drawn, target = _spectra(sound, recorded)
    return _relative(drawn, target, [1, 2])


def multi_loss(sound: tf.Tensor, recorded: tf.Tensor) -> tf.Tensor:
    """Return spectral convergence plus log-magnitude error at three sizes (arXiv 1910.11480)."""
    return tf.add_n([_resolution(sound, recorded, *r) for r in RESOLUTIONS]) / len(RESOLUTIONS)


def _spectra(sound: tf.Tensor, recorded: tf.Tensor) -> Iterator[tf.Tensor]:
    return (magnitudes(x, WINDOW, HOP, WINDOW) for x in (sound, recorded))


def _relative(drawn: tf.Tensor, target: tf.Tensor, axes: list[int]) -> tf.Tensor:
    energy = tf.reduce_sum(tf.square(target), axes)
    return tf.reduce_mean(tf.reduce_sum(tf.square(drawn - target), axes) / (energy + SILENT))


def _resolution(
    sound: tf.Tensor, recorded: tf.Tensor, fft_size: int, hop_samples: int, window_samples: int
) -> tf.Tensor:
    """Return || S - S' ||_F / || S ||_F + mean |log S - log S'|; S is the recording's."""
    drawn, target = (
        magnitudes(x, window_samples, hop_samples, fft_size) for x in (sound, recorded)
    )
    scale = tf.sqrt(tf.reduce_sum(tf.square(target), [1, 2]) + SILENT)
    convergence = tf.sqrt(tf.reduce_sum(tf.square(drawn - target), [1, 2]) + 1e-12) / scale
    logs = tf.math.log(tf.maximum(drawn, LOWEST)) - tf.math.log(tf.maximum(target, LOWEST))
    return tf.reduce_mean(convergence) + tf.reduce_mean(tf.abs(logs))
