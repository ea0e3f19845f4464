"""Prepare recordings of many voices for `wavenet-universal-22k`.

    python -m examples.universal_voice_data SPEECH OUT

SPEECH holds a folder per corpus (speech_*), each with train/ and dev/. OUT gets the same names in
OUT/train and OUT/dev, mono FLAC at 22,050 Hz: every file at the same level, and train once more at
another speed (small corpora at six). Recordings without a band above 8 kHz get one, the mirror
image of the band below their top, so that the network need not guess which lack it. Corpora of
`--unheard` are written to dev only.
"""

import dataclasses
import hashlib
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from onepass.foundation.rules import UserError
from onepass.foundation.runtime import in_threads
from wavenet.data import audio

RATE_HZ = 22_050
LEVEL_DB = -23.0  # RMS, re full scale
PEAK = 0.97  # of full scale
SPEEDS = (0.80, 0.86, 0.93, 1.08, 1.17, 1.26)  # one of them per file, chosen by its name
SMALL = 100  # recordings; a smaller corpus is written at every speed


@dataclasses.dataclass(frozen=True)
class Task:
    """A file to write: source, target and speed."""

    source: Path
    target: Path
    speed: float = 1.0


def tasks(speech: Path, out: Path, unheard: tuple[str, ...]) -> list[Task]:
    """Return the files to write, by the names of corpora and files."""
    found = []
    for source in sorted(speech.glob("speech_*/*/*.flac")):
        corpus, split = source.parts[-3], source.parts[-2]
        target = out / split / corpus / source.name
        if split == "dev":
            found.append(Task(source, target))
        elif split == "train" and not any(name in corpus for name in unheard):
            found.append(Task(source, target))
            for speed in speeds(source):
                other = target.with_name(f"{source.stem}_{round(100 * speed)}.flac")
                found.append(Task(source, other, speed))
    return found


def speeds(source: Path) -> tuple[float, ...]:
    """Return the additional speeds at which a recording of train is written."""
    if len(list(source.parent.iterdir())) < SMALL:
        return SPEEDS
    digest = hashlib.sha256(source.name.encode()).digest()
    return (SPEEDS[digest[0] % len(SPEEDS)],)


def at_level(waveform: np.ndarray) -> np.ndarray:
    """Return float [samples] at `LEVEL_DB`, or as close as a peak of `PEAK` allows."""
    rms = np.sqrt(np.mean(np.square(waveform, dtype=np.float64)))
    wanted = 10 ** (LEVEL_DB / 20) / max(rms, 1e-6)
    return waveform * min(wanted, PEAK / max(float(np.max(np.abs(waveform))), 1e-6))


def widened(waveform: np.ndarray, rate_hz: int) -> np.ndarray:
    """Return [2 * samples] at twice the rate, with the band mirrored above its top, 12 dB lower."""
    low = audio.resample(waveform, rate_hz, 2 * rate_hz)
    images = np.zeros(2 * waveform.size, np.float32)
    images[::2] = 2.0 * waveform  # interleaved with zeros: the band and its mirror image
    size = min(low.size, images.size)
    return low[:size] + 0.25 * (images[:size] - low[:size])


def write(task: Task) -> None:
    """Write one file."""
    sound = audio.read_sound(task.source)
    waveform, rate_hz = sound.waveform, sound.sample_rate_hz
    if rate_hz < RATE_HZ:
        waveform, rate_hz = widened(waveform, rate_hz), 2 * rate_hz
    waveform = audio.resample(waveform, round(rate_hz * task.speed), RATE_HZ)
    task.target.parent.mkdir(parents=True, exist_ok=True)
    audio.write(task.target, at_level(waveform), RATE_HZ)


def main(
    speech: Annotated[Path, tyro.conf.Positional],
    out: Annotated[Path, tyro.conf.Positional],
    unheard: tuple[str, ...] = ("kerstin",),
) -> None:
    """Prepare recordings of many voices for `wavenet-universal-22k`.

    Args:
      speech: the folder of corpora.
      out: folder for the prepared files.
      unheard: corpora whose recordings are left out of train, by a part of the name.
    """
    wanted = tasks(speech, out, unheard)
    if not wanted:
        raise UserError(f"{speech} must have files speech_*/train/*.flac, got none.")
    in_threads(write, wanted, "preparing", "recording", None)
    print(f"{out}: {len(wanted)} recordings at {RATE_HZ} Hz.")


if __name__ == "__main__":
    tyro.cli(main)
