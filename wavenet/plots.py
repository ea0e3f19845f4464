"""Plots of waveforms and spectrograms."""

import os

import numpy as np
import scipy.signal
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from onepass.foundation.files import replacing

DB_RANGE = 80.0  # dB
WINDOW_SECONDS = 0.03
COLUMNS = 1200


def level_db(waveform: np.ndarray, sample_rate_hz: int) -> np.ndarray:
    """Return the spectrogram in dB relative to a full-scale sine, [frequencies, hops]."""
    window_samples = max(16, round(WINDOW_SECONDS * sample_rate_hz))
    hop_samples = max(window_samples // 8, -(-waveform.size // COLUMNS))
    window = scipy.signal.get_window("hann", window_samples)
    transform = scipy.signal.ShortTimeFFT(
        window, hop_samples, sample_rate_hz, scale_to=None, mfft=max(1024, window_samples)
    )
    padded = np.pad(waveform, (0, max(0, window_samples - waveform.size)))
    columns = -(-waveform.size // hop_samples)
    magnitude = np.abs(transform.stft(padded, p0=0, p1=columns)) * (2.0 / window.sum())
    return 20.0 * np.log10(np.maximum(magnitude, 1e-8))


def _draw_waveform(axes: Axes, title: str, waveform: np.ndarray, sample_rate_hz: int) -> None:
    starts = np.arange(0, waveform.size, max(1, waveform.size // COLUMNS))
    low, high = np.minimum.reduceat(waveform, starts), np.maximum.reduceat(waveform, starts)
    seconds, blue = starts / sample_rate_hz, "tab:blue"
    axes.fill_between(seconds, low, high, linewidth=0.4, color=blue, edgecolor=blue)
    axes.set_title(title, loc="left", fontsize=10, parse_math=False)
    largest = max(1e-3, float(np.max(np.abs(waveform))))
    axes.set_ylim(-1.05 * largest, 1.05 * largest)
    axes.set_xlim(0.0, waveform.size / sample_rate_hz)
    axes.set_ylabel("amplitude")
    axes.tick_params(labelbottom=False)


def _draw_spectrogram(
    axes: Axes, level_db: np.ndarray, seconds: float, top_khz: float, top_db: float
) -> AxesImage:
    image = axes.imshow(
        level_db,
        origin="lower",
        aspect="auto",
        extent=(0.0, seconds, 0.0, top_khz),
        vmin=top_db - DB_RANGE,
        vmax=top_db,
        cmap="magma",
    )
    axes.set_xlabel("time (s)")
    axes.set_ylabel("frequency (kHz)")
    return image


def _check(waveforms: dict[str, np.ndarray]) -> None:
    if not waveforms:
        raise ValueError("`waveforms` must hold at least one waveform, got none.")
    for title, waveform in waveforms.items():
        if np.ndim(waveform) != 1 or not np.size(waveform):
            raise ValueError(f'`waveforms["{title}"]` must be [samples], got {np.shape(waveform)}.')


def spectrogram_figure(waveforms: dict[str, np.ndarray], sample_rate_hz: int) -> Figure:
    """Return a figure that shows each titled waveform above its spectrogram.

    The shared colours span the DB_RANGE dB below the loudest point; 0 dB is a full-scale sine.
    """
    _check(waveforms)
    arrays = {title: np.asarray(w, np.float64) for title, w in waveforms.items()}
    levels = {title: level_db(w, sample_rate_hz) for title, w in arrays.items()}
    top_db = max(float(level.max()) for level in levels.values())
    figure = Figure(figsize=(10.0, 4.2 * len(arrays)), layout="constrained")
    rows = figure.subplots(2 * len(arrays), 1, squeeze=False, height_ratios=[1, 3] * len(arrays))
    rows = rows[:, 0]
    for place, (title, waveform) in enumerate(arrays.items()):
        _draw_waveform(rows[2 * place], title, waveform, sample_rate_hz)
        seconds, top_khz = waveform.size / sample_rate_hz, sample_rate_hz / 2000
        image = _draw_spectrogram(rows[2 * place + 1], levels[title], seconds, top_khz, top_db)
    figure.colorbar(image, ax=list(rows[1::2]), label="level (dB re full-scale sine)", aspect=30)
    return figure


def spectrogram_png(
    path: str | os.PathLike[str], waveforms: dict[str, np.ndarray], sample_rate_hz: int
) -> None:
    """Write `spectrogram_figure` atomically to a PNG file, whose folder must exist."""
    figure = spectrogram_figure(waveforms, sample_rate_hz)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=100)
