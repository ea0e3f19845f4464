"""Log-mel spectrograms as defined by a `MelConvention`."""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from onepass.foundation.errors import UserError
from wavenet.features.conventions import MelConvention

FRAMES_AT_ONCE = 2048


def _logarithm(values: np.ndarray, convention: MelConvention) -> np.ndarray:
    return np.log(values) if convention.log == "natural" else np.log10(values)


def num_frames(samples: int, hop_samples: int) -> int:
    """Return the number of frames for a number of samples, ceil(samples / hop_samples)."""
    return -(-samples // hop_samples)


def hz_to_mel(frequency_hz: np.ndarray, scale: str = "slaney") -> np.ndarray:
    """Convert Hz to mel: "slaney" is the Auditory Toolbox's scale (1998), "htk" is HTK's scale."""
    f = np.asarray(frequency_hz, np.float64)
    if scale == "htk":
        return 2595.0 * np.log10(1.0 + f / 700.0)
    above = 15.0 + 27.0 * np.log(np.maximum(f, 1000.0) / 1000.0) / np.log(6.4)
    return np.where(f < 1000.0, 3.0 * f / 200.0, above)


def mel_to_hz(mel: np.ndarray, scale: str = "slaney") -> np.ndarray:
    """Convert mel to Hz, the inverse of `hz_to_mel`."""
    m = np.asarray(mel, np.float64)
    if scale == "htk":
        return 700.0 * (10.0 ** (m / 2595.0) - 1.0)
    above_hz = 1000.0 * 6.4 ** ((np.maximum(m, 15.0) - 15.0) / 27.0)
    return np.where(m < 15.0, 200.0 * m / 3.0, above_hz)


@functools.lru_cache(maxsize=16)
def hann_window(window_samples: int) -> np.ndarray:
    """Return a periodic Hann window as a read-only array, float64 [window_samples]."""
    window = np.sin(np.pi * np.arange(window_samples) / window_samples) ** 2
    window.setflags(write=False)
    return window


@functools.lru_cache(maxsize=16)
def mel_filters(convention: MelConvention) -> np.ndarray:
    """Return the triangular filters as a read-only array, float32 [fft_size / 2 + 1, bands]."""
    low_mel, high_mel = hz_to_mel(
        np.array([convention.low_hz, convention.top_hz]), convention.scale
    )
    points_hz = mel_to_hz(np.linspace(low_mel, high_mel, convention.bands + 2), convention.scale)
    bins = np.arange(convention.fft_size // 2 + 1)[:, None]
    bins_hz = bins * (convention.sample_rate_hz / convention.fft_size)
    filters = triangles(points_hz, bins_hz)
    if not np.all(filters.any(axis=0)):
        empty = int(np.argmin(filters.any(axis=0)))
        raise UserError(
            f"`bands` must leave an FFT bin in every band, got {convention.bands} with `fft_size` "
            f"{convention.fft_size}: band {empty} is empty."
        )
    if convention.normalisation == "area":
        filters = filters * (2.0 / (points_hz[2:] - points_hz[:-2]))
    filters = filters.astype(np.float32)
    filters.setflags(write=False)
    return filters


def triangles(points_hz: np.ndarray, bins_hz: np.ndarray) -> np.ndarray:
    """Return triangular filters with height one over three consecutive points, [bins, bands]."""
    low, middle, high = points_hz[:-2], points_hz[1:-1], points_hz[2:]
    rising, falling = (bins_hz - low) / (middle - low), (high - bins_hz) / (high - middle)
    return np.maximum(0.0, np.minimum(rising, falling))


def _pad_blocks(
    blocks: Iterator[np.ndarray], samples: int, convention: MelConvention
) -> Iterator[np.ndarray]:
    left = convention.window_samples // 2 - convention.hop_samples // 2
    frames = num_frames(samples, convention.hop_samples)
    length = (frames - 1) * convention.hop_samples + convention.window_samples
    right = max(0, length - left - samples)
    if convention.padding == "zeros":
        yield np.zeros(left, np.float32)
        yield from blocks
        yield np.zeros(right, np.float32)
        return
    if samples < 2:
        raise UserError(f"`waveform` needs 2 samples to reflect, got {samples}.")
    near = max(left, right) + 1  # samples at each end that the reflection reads
    if samples < 2 * near:
        yield np.pad(np.concatenate(list(blocks)), (left, right), mode="reflect")
        return
    begun, last = False, np.zeros(0, np.float32)
    for block in blocks:
        last = np.concatenate([last, block])
        if not begun and len(last) < near:
            continue
        yield block if begun else np.concatenate([last[left:0:-1], last])
        begun, last = True, last[-near:]
    yield last[-2 : -2 - right : -1]


def mel_spectrogram(waveform: np.ndarray, convention: MelConvention) -> np.ndarray:
    """Return the log-mel spectrogram of a waveform, float32 [ceil(samples / hop_samples), bands].

    The waveform is float [samples] in [-1, 1] at `convention.sample_rate_hz`.
    """
    waveform = np.asarray(waveform, np.float32)
    if waveform.ndim != 1 or not waveform.size:
        raise ValueError(f"`waveform` must have the shape [samples], got {waveform.shape}.")
    return np.concatenate(list(mel_pieces(iter([waveform]), waveform.size, convention)))


def mel_pieces(
    blocks: Iterator[np.ndarray], samples: int, convention: MelConvention
) -> Iterator[np.ndarray]:
    """Yield the frames of `mel_spectrogram` in pieces, float32 [up to `FRAMES_AT_ONCE`, bands]."""
    hop, left = convention.hop_samples, num_frames(samples, convention.hop_samples)
    held = np.zeros(0, np.float32)
    for block in _pad_blocks(blocks, samples, convention):
        held = np.concatenate([held, block])
        while left and len(held) >= _needed_samples(left, convention):
            frames = min(left, FRAMES_AT_ONCE)
            windows = np.lib.stride_tricks.sliding_window_view(held, convention.window_samples)
            yield _log_mel(windows[::hop][:frames], convention)
            held, left = held[frames * hop :], left - frames


def _needed_samples(frames: int, convention: MelConvention) -> int:
    """Return the number of samples that the next piece reads if `frames` frames remain."""
    return (min(frames, FRAMES_AT_ONCE) - 1) * convention.hop_samples + convention.window_samples


def _log_mel(segments: np.ndarray, convention: MelConvention) -> np.ndarray:
    """Return the log-mel frames of segments [frames, window_samples], float32 [frames, bands].

    They are computed in float64 and rounded once. SciPy's sparse product sums the bands in a fixed
    order; with BLAS the order would depend on the processor and the number of threads.
    """
    import scipy.fft  # imported here since it takes a third of a second

    spectrum = scipy.fft.rfft(
        segments * hann_window(convention.window_samples), n=convention.fft_size, axis=-1
    )
    bands = (_sparse_filters(convention) @ np.abs(spectrum).T).T
    return _logarithm(np.maximum(bands, convention.floor), convention).astype(np.float32)


@functools.lru_cache(maxsize=16)
def _sparse_filters(convention: MelConvention) -> Any:
    import scipy.sparse

    return scipy.sparse.csr_array(mel_filters(convention).T.astype(np.float64))


def mel_of(above: np.ndarray, convention: MelConvention) -> np.ndarray:
    """Convert a result of `above_silence` back to log-mel values, float32."""
    return ((1.0 - above) * convention.silence).astype(np.float32)


def above_silence(mel: np.ndarray, convention: MelConvention) -> np.ndarray:
    """Return 1 - mel / silence, float32, which networks read: 0 in silence, 1 at magnitude 1."""
    return (1.0 - mel / convention.silence).astype(np.float32)
