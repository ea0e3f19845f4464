"""Synthesis of a waveform from mel frames by the Griffin-Lim algorithm (1984)."""

import numpy as np
import scipy.fft
import scipy.sparse

from wavenet.features.mel import MelConvention, hann_window, mel_filters, num_frames

MOMENTUM = 0.99
MAGNITUDE_UPDATES = 100
REFIT_UPDATES = 3
TINY = 1e-12  # lower bound of divisors, so that 0 / 0 is 0


def griffin_lim(
    mel_frames: np.ndarray,
    convention: MelConvention,
    num_samples: int,
    iterations: int = 60,
    seed: int = 0,
    refit: bool = False,
) -> np.ndarray:
    """Return a waveform with approximately the given mel frames, float32 [num_samples].

    It is not clipped.

    The magnitudes come from `magnitudes_of_mel`; the initial phases are uniformly random. An
    iteration projects onto consistent spectrograms (Griffin and Lim), extrapolates by `MOMENTUM`
    times the last step, and restores the magnitudes:

        c_n = STFT(ISTFT(s_n)),   t_n = c_n + 0.99 (c_n - c_{n-1}),   s_{n+1} = |s| t_n / |t_n|

    Sources: Griffin, Lim, "Signal estimation from modified short-time Fourier transform", IEEE
    TASSP 32(2), 1984; Perraudin, Balazs, Sondergaard, "A fast Griffin-Lim algorithm", WASPAA 2013.

    Args:
      mel_frames: [frames, bands] from `mel_spectrogram`; values at the convention's floor are
        silence. The memory needed is 250 MB per minute of audio at 16 kHz.
      num_samples: length of the waveform in samples, in ((frames - 1) hop, frames hop].
      refit: in each iteration, replace |s| by |t_n| after a few updates that fit it to the mel
        frames, instead of keeping the estimated magnitudes. This is no longer Griffin-Lim, but
        clearly better.
    """
    frames = _check_mel(mel_frames, convention, num_samples)
    bands = _bands(frames, convention)
    if iterations < 0:
        raise ValueError(f"`iterations` must be 0 or more, got {iterations}.")
    magnitudes = magnitudes_of_mel(frames, convention)
    grid = _Grid(convention, num_samples)
    phases = 2.0 * np.pi * np.random.default_rng(seed).random(magnitudes.shape)
    spectrum = _with_phase_of(np.exp(1j * phases), magnitudes)
    last = None
    for _ in range(iterations):
        consistent = grid.spectrum(grid.sound(spectrum))
        ahead = consistent if last is None else consistent + MOMENTUM * (consistent - last)
        if refit:
            magnitudes = _towards(np.abs(ahead), bands, convention, REFIT_UPDATES)
        spectrum, last = _with_phase_of(ahead, magnitudes), consistent
    return grid.sound(spectrum)


def magnitudes_of_mel(mel_frames: np.ndarray, convention: MelConvention) -> np.ndarray:
    """Estimate magnitudes, float64 [frames, fft_size / 2 + 1], that match the mel frames.

    They reduce the Itakura-Saito divergence, the sum of b / c - ln(b / c) - 1 over the target bands
    b and their approximations c, by 100 multiplicative updates that start from a flat spectrum,

        a <- a sqrt( M (b / c^2) / M (1 / c) ),   c = M^T a

    none of which increases the divergence (Fevotte, Idier, Neural Computation 23(9), 2011,
    section 4). Like log-mel differences, the divergence depends only on ratios.
    """
    bands = _bands(np.asarray(mel_frames, np.float64), convention)
    level = np.repeat(bands.mean(axis=1, keepdims=True), convention.fft_size // 2 + 1, axis=1)
    return _towards(level, bands, convention, MAGNITUDE_UPDATES)


def _check_mel(mel_frames: np.ndarray, convention: MelConvention, num_samples: int) -> np.ndarray:
    frames = np.asarray(mel_frames, np.float64)
    if frames.ndim != 2 or not len(frames) or frames.shape[1] != convention.bands:
        raise ValueError(
            f"`mel_frames` must have the shape [frames, {convention.bands}], got {frames.shape}."
        )
    if not np.all(np.isfinite(frames)):
        raise ValueError("`mel_frames` must be finite, got NaN or infinity.")
    hop = convention.hop_samples
    if num_samples < 1 or num_frames(num_samples, hop) != len(frames):
        raise ValueError(
            f"`num_samples` must be above {(len(frames) - 1) * hop} and at most "
            f"{len(frames) * hop} for {len(frames)} frames, got {num_samples}."
        )
    return frames


def _bands(frames: np.ndarray, convention: MelConvention) -> np.ndarray:
    bands = np.exp(frames) if convention.log == "natural" else 10.0**frames
    return np.where(bands <= convention.floor * (1.0 + 1e-5), 0.0, bands)


def _towards(
    magnitudes: np.ndarray, bands: np.ndarray, convention: MelConvention, updates: int
) -> np.ndarray:
    M = scipy.sparse.csr_array(mel_filters(convention).astype(np.float64))  # two bands per bin
    a = magnitudes.astype(np.float64)
    for _ in range(updates):
        c = np.maximum(a @ M, TINY)
        a *= np.sqrt((bands / c**2) @ M.T / np.maximum((1.0 / c) @ M.T, TINY))
    return a


def _with_phase_of(spectrum: np.ndarray, magnitudes: np.ndarray) -> np.ndarray:
    return (magnitudes * spectrum / np.maximum(np.abs(spectrum), TINY)).astype(np.complex64)


class _Grid:
    """The STFT of a mel convention and its inverse, for waveforms of `num_samples` samples."""

    def __init__(self, convention: MelConvention, num_samples: int) -> None:
        self.convention, self.num_samples = convention, num_samples
        self.frames = num_frames(num_samples, convention.hop_samples)
        self.window = hann_window(convention.window_samples).astype(np.float32)
        self.first = convention.window_samples // 2 - convention.hop_samples // 2
        self.weight = self._overlap_add(np.tile(self.window**2, (self.frames, 1)))

    def spectrum(self, sound: np.ndarray) -> np.ndarray:
        hop, window = self.convention.hop_samples, self.convention.window_samples
        length = (self.frames - 1) * hop + window
        around = (self.first, max(0, length - self.first - len(sound)))
        zeros = self.convention.padding == "zeros"
        padded = np.pad(sound, around, mode="constant" if zeros else "reflect")
        segments = np.lib.stride_tricks.sliding_window_view(padded, window)[::hop][: self.frames]
        return scipy.fft.rfft(segments * self.window, n=self.convention.fft_size, axis=-1)

    def sound(self, spectrum: np.ndarray) -> np.ndarray:
        """Return the waveform whose STFT is closest to `spectrum` (Griffin and Lim, equation 6)."""
        segments = scipy.fft.irfft(spectrum, n=self.convention.fft_size, axis=-1)
        segments = segments[:, : self.convention.window_samples] * self.window
        return self._overlap_add(segments) / np.maximum(self.weight, np.float32(TINY))

    def _overlap_add(self, segments: np.ndarray) -> np.ndarray:
        sums = overlap_added(segments, self.convention.hop_samples)
        return sums[self.first : self.first + self.num_samples]


def overlap_added(segments: np.ndarray, hop: int) -> np.ndarray:
    """Overlap-add segments [frames, window] with the given hop, float32 [whole number of hops]."""
    frames, window = segments.shape
    blocks = -(-window // hop)
    padded = np.pad(segments, ((0, 0), (0, blocks * hop - window)))
    sums = np.zeros((frames + blocks - 1, hop), np.float32)
    for block in range(blocks):
        sums[block : block + frames] += padded[:, block * hop : (block + 1) * hop]
    return sums.reshape(-1)
