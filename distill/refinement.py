"""Phase reconstruction that fits a student's sound to the mel, starting from its own phases.

A student's phases are good, but its magnitudes differ slightly from the magnitudes that the mel
implies. A pass computes the spectrogram of the sound, fits its magnitudes to the mel of the frames,
keeps the phases and converts back to sound (Griffin and Lim 1984, with the magnitudes refitted to
the mel as in `wavenet.features.frames`). Each pass looks one window ahead.

It suits frames with the detail of recordings. Frames that a model predicts as a mean, instead of
drawing them, are blurred, and the passes keep the blur.
"""

from collections.abc import Iterator

import numpy as np
import scipy.fft
import scipy.sparse

from onepass.foundation.rules import must_be
from wavenet.config import MelConvention
from wavenet.features.frames import FramesInPieces, hann_window, mel_filters, mel_of, overlap_added

UPDATES = 2  # updates of the magnitudes towards the mel in a pass
TINY = np.float32(1e-9)  # lower bound of magnitudes and of bands


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
        bands = np.maximum(bands.astype(np.float32), TINY)
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
        return overlap_added(segments, hop)[kept] / np.maximum(weight[kept], TINY)

    def _gains(self, magnitudes: np.ndarray, bands: np.ndarray) -> np.ndarray:
        a = np.maximum(magnitudes, TINY)
        nearer = a.copy()
        for _ in range(UPDATES):
            inverse = 1.0 / np.maximum(nearer @ self._filters, TINY)
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
