"""Differentiable spectra of waveforms."""

import numpy as np
import tensorflow as tf

from wavenet.features import MelConvention, mel_filters, num_frames
from wavenet.features.mel import hann_window

EPSILON = 1e-16  # inside the root: |X| of silence is 1e-8, its gradient 0 instead of infinite


def _check_waveform(
    waveform: tf.Tensor, window_samples: int, hop_samples: int, fft_size: int
) -> None:
    if hop_samples < 1:
        raise ValueError(f"`hop_samples` must be at least 1, got {hop_samples}.")
    if fft_size < window_samples:
        raise ValueError(f"`fft_size` must be at least {window_samples}, got {fft_size}.")
    if waveform.shape.rank != 2:
        raise ValueError(f"`waveform` must have the shape [batch, time], got {waveform.shape}.")
    if waveform.shape[1] is not None and waveform.shape[1] < window_samples:
        raise ValueError(
            f"`waveform` must last at least {window_samples} samples, got {waveform.shape[1]}."
        )


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
    _check_waveform(waveform, window_samples, hop_samples, fft_size)
    segments = tf.signal.frame(waveform, window_samples, hop_samples)
    spectrum = tf.signal.rfft(segments * hann_window(window_samples).astype(np.float32), [fft_size])
    power = tf.square(tf.math.real(spectrum)) + tf.square(tf.math.imag(spectrum))
    return tf.sqrt(power + EPSILON)


def _pad_waveform(waveform: tf.Tensor, convention: MelConvention) -> tf.Tensor:
    samples, hop_samples = waveform.shape[1], convention.hop_samples
    left = convention.window_samples // 2 - hop_samples // 2
    last = (num_frames(samples, hop_samples) - 1) * hop_samples
    right = max(0, last + convention.window_samples - left - samples)
    mode = "CONSTANT" if convention.padding == "zeros" else "REFLECT"
    return tf.pad(waveform, [[0, 0], [left, right]], mode)


def log_mel(waveform: tf.Tensor, convention: MelConvention) -> tf.Tensor:
    """Return the frames of `wavenet.features.mel_spectrogram`, float32 [batch, frames, bands].

    Where a band is below the convention's floor, its gradient is zero.
    """
    waveform = tf.convert_to_tensor(waveform)
    if waveform.shape.rank != 2 or not waveform.shape[1]:
        raise ValueError(f"`waveform` must have the shape [batch, time], got {waveform.shape}.")
    spectrum = magnitudes(
        _pad_waveform(waveform, convention),
        convention.window_samples,
        convention.hop_samples,
        convention.fft_size,
    )
    frames = num_frames(waveform.shape[1], convention.hop_samples)
    bands = spectrum[:, :frames] @ mel_filters(convention)
    log = tf.math.log(tf.maximum(bands, convention.floor))
    return log if convention.log == "natural" else log / float(np.log(10.0))
