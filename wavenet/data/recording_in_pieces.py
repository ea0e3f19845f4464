"""A recording of any length, read block by block and never completely in memory."""

import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import soxr

from wavenet.data.audio import AudioError, decibel, mono_blocks, properties

SUMMED = 1 << 18  # maximum number of samples whose squares are added at once


class RecordingInPieces:
    """An audio file read in blocks, mixed to mono and resampled as in `audio.read`."""

    def __init__(self, path: Path, rate_hz: int) -> None:
        self._path, self.rate_hz = path, rate_hz
        self.file = properties(path)
        self.samples, peak = 0, 0.0
        for block in self.blocks():
            self.samples += len(block)
            peak = max(peak, float(np.max(np.abs(block), initial=0.0)))
        check_length(path, self.samples)
        self.peak_db = decibel(peak)

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield the waveform that `audio.read` returns, in blocks, float32 [samples]."""
        blocks = mono_blocks(self._path, self.file)
        if self.file.sample_rate_hz == self.rate_hz:
            yield from blocks
            return
        stream = soxr.ResampleStream(
            self.file.sample_rate_hz, self.rate_hz, 1, dtype="float32", quality="VHQ"
        )
        for block in blocks:
            yield stream.resample_chunk(np.ascontiguousarray(block))
        yield stream.resample_chunk(np.zeros(0, np.float32), last=True)

    def beginning(self, samples: int) -> np.ndarray:
        """Return up to `samples` samples from the beginning, float32."""
        taken: list[np.ndarray] = []
        for block in self.blocks():
            taken.append(block)
            if sum(map(len, taken)) >= samples:
                break
        return np.concatenate(taken)[:samples]

    @functools.cached_property
    def rms_db(self) -> float:
        """RMS level in dB of full scale, bit for bit equal to `audio.rms_db` of the waveform."""
        squares = _Squares(self.blocks())
        total = squares.sum_of(self.samples)
        return decibel(float(np.sqrt(total / self.samples)))


def check_length(path: Path, samples: int) -> None:
    """Raise an AudioError if there are too few samples to compute frames from."""
    if samples < 2:
        raise AudioError(path, f"holds too little sound: {samples} samples at the model's rate")


class _Squares:
    def __init__(self, blocks: Iterator[np.ndarray]) -> None:
        self._blocks, self._held = blocks, np.zeros(0, np.float32)

    def sum_of(self, samples: int) -> np.float64:
        """Return the sum of squares of the next `samples` samples.

        Like NumPy, it uses pairwise summation: the first half, rounded down to a multiple of eight,
        and the rest are summed separately, each in the same way.
        """
        if samples > SUMMED:
            half = samples // 2
            half -= half % 8
            first = self.sum_of(half)
            return first + self.sum_of(samples - half)
        while len(self._held) < samples:
            self._held = np.concatenate([self._held, next(self._blocks)])
        taken, self._held = self._held[:samples], self._held[samples:]
        return np.add.reduce(np.square(taken, dtype=np.float64))
