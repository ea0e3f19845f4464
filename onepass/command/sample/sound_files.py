"""Write sounds chunk by chunk to WAV files, with their spectrograms and a printed summary."""

import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from onepass.command.sample.drawing import Drawing
from onepass.speech.phonemes import note_on_markup
from wavenet.data import audio
from wavenet.plots import spectrogram_png

LEAST_SECONDS = 0.1  # shorter sounds have no meaningful generation speed
PLOTTED_SECONDS = 20.0  # only the beginning of a longer sound is plotted


class Chunk(NamedTuple):
    """Consecutive samples of one or more sounds.

    Attributes:
      rows: indices of the sounds; a chunk with different rows ends the previous sounds.
      samples: float32 [rows, samples].
      limited: number of samples of each row that reached full scale, int [rows].
      made: whether the samples were drawn, rather than copied from a recording.
    """

    rows: range
    samples: np.ndarray
    limited: np.ndarray | int = 0
    made: bool = True


class SoundDrawing(Drawing):
    """Sounds written while generated, kept at Ctrl-C, and plotted above `recording` [samples]."""

    remark = ""  # appended to the printed time

    def __init__(self, given: Any, model: Any, arguments: dict[str, Any], name: str, rate_hz: int):
        super().__init__(given, model, arguments)
        self.total, self.rate_hz = given.num or 1, rate_hz
        self.paths = [given.out / f"{name}_{given.seed}_{row}.wav" for row in range(self.total)]
        self.files = [each for path in self.paths for each in (path, path.with_suffix(".png"))]
        self.recording: np.ndarray | None = None
        self._rows, self._record = range(0), Record(0)
        self._writers: list[Callable[[np.ndarray], None]] = []

    def __enter__(self) -> Self:
        self._record = Record(0)
        return super().__enter__()

    def write(self, part: Chunk) -> int:
        """Append a chunk to the files of its rows."""
        if part.rows != self._rows:
            self.end_rows()
            self._rows, self._record = part.rows, Record(len(part.rows), self._record.started)
            places = [self.paths[row] for row in part.rows]
            self._writers = [self.enter_context(audio.writing(p, self.rate_hz)) for p in places]
        for append, row in zip(self._writers, part.samples, strict=True):
            append(row)
        self._record.add(part, int(PLOTTED_SECONDS * self.rate_hz))
        return 0  # the drawing itself counts the units

    def describe_progress(self) -> str:
        """Return the length of the current sounds so far, as text."""
        return f"{self._record.samples / self.rate_hz:.1f} s"

    def finish(self) -> None:
        """Finish the files of the last rows."""
        self.end_rows()

    def end_rows(self) -> bool:
        """Complete the rows' files, plot and report them; return whether they have samples."""
        self.close()
        record, rows, self._rows = self._record, self._rows, range(0)
        if not record.samples:
            return False
        beginnings = np.concatenate(record.beginnings, 1)
        for number, row in enumerate(rows):
            path, plotted = self.paths[row], {"sampled": beginnings[number]}
            if self.recording is not None:
                plotted["recorded"] = self.recording[: beginnings.shape[1]]
            spectrogram_png(path.with_suffix(".png"), plotted, self.rate_hz)
            print(record.line(path, number, self.rate_hz))
            if record.limited[number]:
                count = f"{record.limited[number]:,} samples"
                print(f"{path}: {count} reached full scale and were limited")
        if record.made:
            print(record.speed(self.rate_hz) + self.remark)
        self._record = Record(0)
        return True


class Record:
    """Statistics of sounds, collected while they are written: levels, beginnings, and speed."""

    def __init__(self, rows: int, started: float | None = None):
        self.samples = self.made = 0
        self.started = self.ended = time.perf_counter() if started is None else started
        self.first_seconds = 0.0
        self.limited = np.zeros(rows, np.int64)
        self.peaks, self.energies = np.zeros(rows), np.zeros(rows)
        self.beginnings: list[np.ndarray] = []

    def add(self, part: Chunk, plotted: int) -> None:
        """Record a chunk; `plotted` is the number of samples that the spectrogram shows."""
        chunk = part.samples
        if self.samples < plotted:
            self.beginnings.append(chunk[:, : plotted - self.samples])
        self.samples += chunk.shape[1]
        self.peaks = np.maximum(self.peaks, np.abs(chunk).max(1, initial=0.0))
        self.energies += np.square(chunk, dtype=np.float64).sum(1)
        self.limited += part.limited
        if part.made:
            self.made += chunk.size
            self.ended = time.perf_counter()
            self.first_seconds = self.first_seconds or self.ended - self.started

    def line(self, path: Path, number: int, rate_hz: int) -> str:
        """Return a line with the length and levels of the sound in row `number`."""
        rms = math.sqrt(self.energies[number] / self.samples)
        return (
            f"{path}: {_duration(self.samples, rate_hz)}, "
            f"peak {audio.decibel(self.peaks[number]):.1f} dB, RMS {audio.decibel(rms):.1f} dB"
        )

    def speed(self, rate_hz: int) -> str:
        """Return a line with the time taken and, unless sounds are short, the real-time factor."""
        seconds, took = self.made / rate_hz, self.ended - self.started
        said = (
            f"{_duration(self.made, rate_hz)} of sound in {took:.2f} s, "
            f"the first of it after {self.first_seconds:.2f} s"
        )
        if seconds < LEAST_SECONDS:
            return said
        return f"{said}: {took / seconds:.2f} of real time, {self.made / took:,.0f} samples/s"


def _duration(samples: int, rate_hz: int) -> str:
    """Return a length in seconds, or in samples if the sound is very short."""
    short = samples < LEAST_SECONDS * rate_hz
    return f"{samples:,} samples" if short else f"{samples / rate_hz:.2f} s"


def say_markup(text: str) -> None:
    """Print a note on stderr if the text contains tags, which would be read aloud."""
    if note := note_on_markup(text):
        print(f"--text: {note}", file=sys.stderr)
