"""Spectra of waveforms with finite gradients, and losses of powers and magnitudes.

van den Oord et al. 2017: || phi(g(z, c)) - phi(y) ||^2 with phi(x) = |STFT(x)|^2. The
windows are Hann windows, because side lobes would otherwise hide high-frequency noise. Errors of
powers and magnitudes are relative to the energy of the recording plus `SILENT`: clips with far more
energy than `SILENT` have equal weight, and quieter clips count less. `squared_loss` uses the energy
of averaged power spectra, for which noise at -50 dB of full scale is quiet (0.008) and noise at -30
dB is not (80); `magnitude_loss` and `multi_loss` sum over frames, and for them both are loud.
"""

from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from onepass.foundation.rules import must_be
from wavenet.config import MelConvention
from wavenet.features.frames import hann_window, mel_filters, num_frames

EPSILON = 1e-16  # inside the root: |X| of silence is 1e-8, its gradient 0 instead of infinite


def magnitudes(
    waveform: tf.Tensor, window_samples: int, hop_samples: int, fft_size: int
) -> tf.Tensor:
    """Return the magnitude spectrum of every whole Hann window, float32 [batch, frames, bins].

    It is sqrt(re^2 + im^2 + 1e-16), so that the gradient is finite everywhere and zero in silence.
    Frame f starts at sample f * hop_samples; there are 1 + (time - window_samples) // hop_samples
    frames and fft_size / 2 + 1 bins. A sine of amplitude a at the centre of a bin has magnitude a *
    window_samples / 4.
    """
    waveform = tf.convert_to_tensor(waveform)
    if hop_samples < 1:
        raise ValueError(must_be("hop_samples", "at least 1", hop_samples))
    if fft_size < window_samples:
        raise ValueError(must_be("fft_size", f"at least {window_samples}", fft_size))
    if waveform.shape.rank != 2:
        raise ValueError(f"`waveform` must have the shape [batch, time], got {waveform.shape}.")
    if waveform.shape[1] is not None and waveform.shape[1] < window_samples:
        raise ValueError(
            f"`waveform` must last at least {window_samples} samples, got {waveform.shape[1]}."
        )
    segments = tf.signal.frame(waveform, window_samples, hop_samples)
    spectrum = tf.signal.rfft(segments * hann_window(window_samples).astype(np.float32), [fft_size])
    power = tf.square(tf.math.real(spectrum)) + tf.square(tf.math.imag(spectrum))
    return tf.sqrt(power + EPSILON)


def log_mel(waveform: tf.Tensor, convention: MelConvention) -> tf.Tensor:
    """Return the frames of `frames.mel_spectrogram`, float32 [batch, frames, bands].

    Where a band is below the convention's floor, its gradient is zero.
    """
    waveform = tf.convert_to_tensor(waveform)
    if waveform.shape.rank != 2 or not waveform.shape[1]:
        raise ValueError(f"`waveform` must have the shape [batch, time], got {waveform.shape}.")
    samples, hop, window = waveform.shape[1], convention.hop_samples, convention.window_samples
    left, frames = window // 2 - hop // 2, num_frames(samples, hop)
    right = max(0, (frames - 1) * hop + window - left - samples)
    mode = "CONSTANT" if convention.padding == "zeros" else "REFLECT"
    padded = tf.pad(waveform, [[0, 0], [left, right]], mode)
    spectrum = magnitudes(padded, window, hop, convention.fft_size)
    bands = spectrum[:, :frames] @ mel_filters(convention)
    log = tf.math.log(tf.maximum(bands, convention.floor))
    return log if convention.log == "natural" else log / float(np.log(10.0))


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
    errors = [_resolution(sound, recorded, fft, hop, window) for fft, hop, window in RESOLUTIONS]
    return tf.add_n(errors) / len(RESOLUTIONS)


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
