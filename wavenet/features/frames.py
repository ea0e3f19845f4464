"""Acoustic frames: log-mel spectrograms, whole and in pieces, F0 on their grid, and statistics.

The statistics of mel frames tell frames of a different convention apart.

Refinement fits a student's sound to the mel, starting from its own phases. A student's phases are
good, but its magnitudes differ slightly from the magnitudes that the mel implies. A pass computes
the spectrogram of the sound, fits its magnitudes to the mel of the frames, keeps the phases and
converts back to sound (Griffin and Lim 1984, with the magnitudes refitted to the mel). Each pass
looks one window ahead.

It suits frames with the detail of recordings. Frames that a model predicts as a mean, instead of
drawing them, are blurred, and the passes keep the blur.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import scipy.fft
import scipy.sparse

from onepass.foundation.rules import UserError, must_be
from wavenet.config import MelConvention, PitchConvention
from wavenet.optional_packages import require

FRAMES_AT_ONCE = 2048


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
    low, high = hz_to_mel(np.array([convention.low_hz, convention.top_hz]), convention.scale)
    points_hz = mel_to_hz(np.linspace(low, high, convention.bands + 2), convention.scale)
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
    """Return the log-mel spectrogram, float32 [frames, bands], of float [samples] in [-1, 1]."""
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
        while left:
            frames = min(left, FRAMES_AT_ONCE)
            if len(held) < (frames - 1) * hop + convention.window_samples:
                break
            windows = np.lib.stride_tricks.sliding_window_view(held, convention.window_samples)
            yield _log_mel(windows[::hop][:frames], convention)
            held, left = held[frames * hop :], left - frames


def _log_mel(segments: np.ndarray, convention: MelConvention) -> np.ndarray:
    """Return the log-mel frames of segments [frames, window_samples], float32 [frames, bands].

    They are computed in float64 and rounded once. SciPy's sparse product sums the bands in a fixed
    order; with BLAS the order would depend on the processor and the number of threads.
    """
    spectrum = scipy.fft.rfft(
        segments * hann_window(convention.window_samples), n=convention.fft_size, axis=-1
    )
    bands = (_sparse_filters(convention) @ np.abs(spectrum).T).T
    logarithm = np.log if convention.log == "natural" else np.log10
    return logarithm(np.maximum(bands, convention.floor)).astype(np.float32)


@functools.lru_cache(maxsize=16)
def _sparse_filters(convention: MelConvention) -> Any:
    return scipy.sparse.csr_array(mel_filters(convention).T.astype(np.float64))


def mel_of(above: np.ndarray, convention: MelConvention) -> np.ndarray:
    """Convert a result of `above_silence` back to log-mel values, float32."""
    return ((1.0 - above) * convention.silence).astype(np.float32)


def above_silence(mel: np.ndarray, convention: MelConvention) -> np.ndarray:
    """Return 1 - mel / silence, float32, which networks read: 0 in silence, 1 at magnitude 1."""
    return (1.0 - mel / convention.silence).astype(np.float32)


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
    """Return a waveform with about the given mel frames, float32 [num_samples], not clipped.

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
      refit: replace |s| by |t_n| after a few updates that fit it to the mel frames, which is no
        longer Griffin-Lim, but clearly better.
    """
    frames, hop = np.asarray(mel_frames, np.float64), convention.hop_samples
    if frames.ndim != 2 or not len(frames) or frames.shape[1] != convention.bands:
        raise ValueError(
            f"`mel_frames` must have the shape [frames, {convention.bands}], got {frames.shape}."
        )
    if not np.all(np.isfinite(frames)):
        raise ValueError("`mel_frames` must be finite, got NaN or infinity.")
    if num_samples < 1 or num_frames(num_samples, hop) != len(frames):
        most = len(frames) * hop
        rule = f"above {most - hop} and at most {most} for {len(frames)} frames"
        raise ValueError(must_be("num_samples", rule, num_samples))
    bands = _bands(frames, convention)
    if iterations < 0:
        raise ValueError(must_be("iterations", "at least 0", iterations))
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


KEPT_FRAMES = 4096  # frames to keep before the latest slice, since refinement reads with a delay


class FramesInPieces:
    """Frames [frames, channels] that are computed while they are read by slicing.

    Only the latest frames are kept in memory. Reading an earlier frame starts the computation again
    from the beginning. `gain_db` is undone in waveforms generated from the frames.
    """

    ndim = 2

    def __init__(
        self, shape: tuple[int, int], pieces: Callable[[], Iterator[np.ndarray]], gain_db: float
    ) -> None:
        """Initialise the frames with a function that yields them in pieces, in order."""
        self.shape, self.gain_db = shape, gain_db
        self._pieces = pieces
        self._begin()

    def __len__(self) -> int:
        """Return the number of frames."""
        return self.shape[0]

    def __getitem__(self, part: slice) -> np.ndarray:
        """Return the frames in a slice, float32 [frames, channels]."""
        start, stop, step = part.indices(len(self))
        if step != 1:
            raise ValueError(must_be("part", "a slice of step 1", part))
        if start < self._first:
            self._begin()
        while self._first + len(self._held) < stop:
            self._read(start)
        return self._held[start - self._first : max(start, stop) - self._first]

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        """Return all frames as one array in memory."""
        return np.asarray(np.concatenate(list(self._pieces())), dtype)

    def _begin(self) -> None:
        self._coming = self._pieces()
        self._held, self._first = np.zeros((0, self.shape[1]), np.float32), 0

    def _read(self, start: int) -> None:
        surplus = max(0, min(start - KEPT_FRAMES - self._first, len(self._held)))
        self._held = np.concatenate([self._held[surplus:], next(self._coming)])
        self._first += surplus


class RepeatedFrames:
    """The same frames for every row of a batch, with shape [batch, frames, channels]."""

    def __init__(self, frames: FramesInPieces, rows: int) -> None:
        self.shape = (rows, *frames.shape)
        self._frames = frames

    def __getitem__(self, place: tuple[slice, slice]) -> np.ndarray:
        """Return the frames in a slice of rows and a slice of frames, float32."""
        rows, part = place
        return np.repeat(self._frames[part][None], self.shape[0], 0)[rows]


def fundamental_frequency(
    waveform: np.ndarray, convention: PitchConvention
) -> tuple[np.ndarray, np.ndarray]:
    """Return F0 in Hz, float32 [frames], 0 if unvoiced, and voicing, bool [frames].

    Frame f is centred on sample f * hop_samples + hop_samples / 2, as in `mel_spectrogram`. F0 is
    estimated by WORLD (Morise et al., IEICE 2016) through pyworld.
    """
    hop_samples = convention.hop_samples
    x = np.asarray(waveform, np.float64)
    if x.ndim != 1 or not x.size:
        raise ValueError(f"`waveform` must have the shape [samples], got {x.shape}.")
    require("pyworld", "quality", "The fundamental frequency")
    import pyworld  # optional, and slow to import

    frames = num_frames(x.size, hop_samples)
    # WORLD centres frame i on sample i * hop, so half a hop is dropped; it also needs a minimum
    # length.
    wanted = max(frames * hop_samples, convention.sample_rate_hz // 10)
    x = np.pad(x[hop_samples // 2 :], (0, max(0, wanted - x.size + hop_samples)))
    x, rate_hz = np.ascontiguousarray(x), convention.sample_rate_hz
    period = 1000.0 * hop_samples / rate_hz
    settings = dict(f0_floor=convention.low_hz, f0_ceil=convention.high_hz, frame_period=period)
    if convention.method == "harvest":
        estimated = pyworld.harvest(x, rate_hz, **settings)[0]
    else:
        raw_hz, positions_seconds = pyworld.dio(x, rate_hz, **settings)
        estimated = pyworld.stonemask(x, raw_hz, positions_seconds, rate_hz)
    f0_hz = estimated[:frames].astype(np.float32)
    return f0_hz, f0_hz > 0.0


def log_f0_features(
    f0_hz: np.ndarray, voiced: np.ndarray, reference_hz: float = 200.0
) -> np.ndarray:
    """Return interpolated log2(f0 / reference_hz), and voicing (0 or 1), float32 [frames, 2]."""
    features = np.zeros((len(f0_hz), 2), np.float32)
    where = np.flatnonzero(voiced)
    if where.size:
        octaves = np.log2(np.asarray(f0_hz, np.float64)[where] / reference_hz)
        features[:, 0] = np.interp(np.arange(len(f0_hz)), where, octaves)
    features[:, 1] = voiced
    return features


LEAST_FRAMES = 20  # minimum number of frames for a meaningful mean
MARGIN = 0.25  # tolerance above the range in training; 29 dB for a floor of 1e-5
FAR = 2.0  # deviations above the training mean that even loud recordings do not reach
LOUD, NARROW = 1.2, 0.65  # a mean above and a spread below these reveal a different logarithm
ROUNDING = 0.05


@dataclasses.dataclass(frozen=True)
class FrameStatistics:
    """Statistics over all bands of a model's training frames (`above_silence`), at least 0."""

    high: float
    mean: float
    deviation: float

    @classmethod
    def of(cls, recordings: Iterable[np.ndarray]) -> "FrameStatistics":
        """Return the statistics of recordings' frames [frames, bands], to four decimal places."""
        high, sums = 0.0, np.zeros(3)
        for frames in recordings:
            values = np.asarray(frames, np.float64)
            high = max(high, float(values.max()))
            sums += values.size, values.sum(), np.square(values).sum()
        mean, square = sums[1:] / sums[0]
        deviation = math.sqrt(max(0.0, square - mean**2))
        return cls(round(high, 4), round(float(mean), 4), round(deviation, 4))


def read_statistics(spec: Mapping[str, Any]) -> FrameStatistics | None:
    """Return the statistics in a model.json; None if it has no valid ones."""
    try:
        found = FrameStatistics(**{name: float(value) for name, value in spec["frames"].items()})
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return found if np.isfinite(dataclasses.astuple(found)).all() and found.deviation > 0 else None


def unlike(frames: np.ndarray, trained: FrameStatistics, mel: MelConvention) -> str | None:
    """Return why frames [frames, bands] do not fit a model's convention, or None if they fit.

    Recordings may have any level, but their values are never below the floor. Frames with a
    different logarithm, or none, have a high mean and a low standard deviation.
    """
    low, high = float(frames.min()), float(frames.max())
    if low < -ROUNDING or high > trained.high + MARGIN:
        ends = f"{_log(low, mel):.2f} to {_log(high, mel):.2f}"
        known = f"{_log(0.0, mel):.2f} to {_log(trained.high, mel):.2f}"
        return f"values from {ends}, where the model knows {known}: {describe(mel)}"
    distance = (float(frames.mean()) - trained.mean) / trained.deviation
    spread = float(frames.std()) / trained.deviation
    if len(frames) < LEAST_FRAMES or not (distance > FAR or (distance > LOUD and spread < NARROW)):
        return None
    scale = abs(mel.silence)
    found = f"mean {_log(float(frames.mean()), mel):.2f}, spread {scale * frames.std():.2f}"
    known = f"mean {_log(trained.mean, mel):.2f}, spread {scale * trained.deviation:.2f}"
    return f"{found}, where the model knows {known}: {describe(mel)}"


def describe(mel: MelConvention) -> str:
    """Return a short description of a convention."""
    return (
        f"{mel.log} logarithms of magnitudes, at least {mel.floor:g}, {mel.bands} bands of scale "
        f"{mel.scale}, normalised by {mel.normalisation}, {mel.sample_rate_hz} Hz"
    )


def _log(value: float, mel: MelConvention) -> float:
    return mel.silence * (1.0 - value)


UPDATES = 2  # updates of the magnitudes towards the mel in a pass
LEAST = np.float32(1e-9)  # lower bound of magnitudes and of bands


class Refiner:
    """Refinement passes over sounds whose mel frames are known; sounds are padded with zeros."""

    def __init__(self, convention: MelConvention, passes: int) -> None:
        if passes < 1:
            raise ValueError(must_be("passes", "at least 1", passes))
        self.convention, self.passes = convention, passes
        self._window = hann_window(convention.window_samples).astype(np.float32)
        filters = mel_filters(convention)
        heard = np.flatnonzero(filters.any(1))  # bins that the mel covers
        self._heard = slice(heard[0], heard[-1] + 1)
        self._filters = scipy.sparse.csr_array(filters[self._heard])
        self._transposed = self._filters.T.tocsr()
        self._side = convention.window_samples // 2 - convention.hop_samples // 2
        # Past frames, and future ones, that a refined sample depends on.
        self.reach_frames = passes * -(-convention.window_samples // convention.hop_samples)

    def __call__(self, sound: np.ndarray, mel: np.ndarray) -> np.ndarray:
        """Return the sound [frames * hop] refined to log-mel frames [frames, bands], float32."""
        bands = np.exp(mel) if self.convention.log == "natural" else 10.0**mel
        bands = np.maximum(bands.astype(np.float32), LEAST)
        for _ in range(self.passes):
            sound = self._pass(sound, bands)
        return sound

    def _pass(self, sound: np.ndarray, bands: np.ndarray) -> np.ndarray:
        window, hop = self.convention.window_samples, self.convention.hop_samples
        padded = np.pad(sound, (self._side, window - hop - self._side))
        segments = np.lib.stride_tricks.sliding_window_view(padded, window)[::hop]
        spectrum = scipy.fft.rfft(segments * self._window, n=self.convention.fft_size)
        spectrum[:, self._heard] *= self._gains(np.abs(spectrum[:, self._heard]), bands)
        segments = scipy.fft.irfft(spectrum, n=self.convention.fft_size)[:, :window] * self._window
        weight = overlap_added(np.broadcast_to(self._window**2, segments.shape), hop)
        kept = slice(self._side, self._side + sound.size)
        return overlap_added(segments, hop)[kept] / np.maximum(weight[kept], LEAST)

    def _gains(self, magnitudes: np.ndarray, bands: np.ndarray) -> np.ndarray:
        a = np.maximum(magnitudes, LEAST)
        nearer = a.copy()
        for _ in range(UPDATES):
            inverse = 1.0 / np.maximum(nearer @ self._filters, LEAST)
            ratio = (bands * inverse**2) @ self._transposed
            nearer *= np.sqrt(ratio / (inverse @ self._transposed))
        return nearer / a


def refine_chunks(
    chunks: Iterator[np.ndarray], frames: np.ndarray | FramesInPieces, refiner: Refiner
) -> Iterator[np.ndarray]:
    """Refine chunks of sounds [batch, samples], and yield the result in chunks, in [-1, 1].

    `frames` [frames, channels] are those that the student reads; the mel is their first channels.
    Samples are yielded as soon as the samples that they depend on are known. For any division into
    chunks, the result equals that of one call of the refiner per sound, clipped to [-1, 1].
    """
    convention, reach = refiner.convention, refiner.reach_frames
    hop = convention.hop_samples
    done, first, held = 0, 0, None  # frames yielded; first frame in `held`; kept samples

    def refine(held: np.ndarray, stop: int) -> np.ndarray:
        """Return the refined samples of the frames from `done` to `stop`."""
        whole = held.shape[1] // hop
        mel = mel_of(frames[first : first + whole][:, : convention.bands], convention)
        rows = [refiner(row[: whole * hop], mel) for row in held]
        kept = slice((done - first) * hop, (stop - first) * hop)
        return np.clip(np.stack(rows)[:, kept], -1.0, 1.0)

    for chunk in chunks:
        held = chunk if held is None else np.concatenate([held, chunk], 1)
        ready = first + held.shape[1] // hop - reach
        if ready > done:
            yield refine(held, ready)
            done, keep = ready, max(0, ready - reach)
            held, first = held[:, (keep - first) * hop :], keep
    if held is not None and held.shape[1]:
        total = first * hop + held.shape[1]
        padded = np.pad(held, ((0, 0), (0, -total % hop)))
        yield refine(padded, first + padded.shape[1] // hop)[:, : total - done * hop]
