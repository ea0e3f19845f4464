"""Decoding of audio files block by block to the end, even if their headers are wrong."""

import errno
import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile

from onepass.foundation.errors import UserError
from onepass.foundation.folders import show_path
from wavenet.data.streams import UNKNOWN_BYTES, AudioChunk, Found, Pieces, Source, found_in

BLOCK_SAMPLES = 1 << 18
RATES_HZ = (1_000, 1_000_000)  # plausible sample rates; a damaged header may have any number
UNKNOWN_SAMPLES = 1 << 60  # this and larger numbers mean that a stream's length is unknown
DECODER_SAMPLES = 4096  # tolerance for the length in a lossy format's header
EXACT = ("PCM_", "FLOAT", "DOUBLE", "ULAW", "ALAW")  # beginnings of subtypes without a tolerance


class AudioError(UserError):
    """An error in reading or writing an audio file, with a one-line message that names the file."""

    def __init__(self, path: object, reason: str) -> None:
        super().__init__(f"{show_path(path)}: {reason}.")
        self.reason = reason


class _Forward(soundfile.SoundFile):
    """A `soundfile.SoundFile` that is only read forward."""

    def seekable(self) -> bool:
        """Return False, so that the decoder does not seek after every block."""
        return False


class SoundFile:
    """A reader of audio files; consecutive streams in a file are read as one recording.

    Attributes:
      missing_samples: number of samples per channel that are announced by a header but missing; set
        after the last block.
      container: name of the container in libsndfile, such as "WAV"; set by the first block.
      subtype: name of the encoding in libsndfile, such as "PCM_16"; set by the first block.
      found: the audio streams in the file; set by the first block.
      stamp: identity, size and modification time of the file; set before the first block.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.sample_rate_hz = self.channels = self.missing_samples = 0
        self.container = self.subtype = ""
        self.found, self.stamp = Found([], []), Stamp(0, 0, 0, 0)

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield float32 [up to `BLOCK_SAMPLES`, channels]; 16-bit s becomes (2 s + 1) / 65535."""
        self.stamp = _stamp_of(self._path)
        try:
            with open(self._path, "rb") as file:
                source = Source(file)
                self.found = found_in(source)
                for stored in self._read_streams(source, self.found):
                    # libsndfile returns s / 32768. Callers handle infinities.
                    with np.errstate(over="ignore", invalid="ignore"):
                        shifted = stored * np.float32(65536.0) + np.float32(1.0)
                        yield shifted / np.float32(65535.0)
        except (soundfile.SoundFileError, OSError) as error:
            self.check_unchanged(self.stamp)
            reason = f"cannot be read as sound ({reason_of(error)})"
            raise AudioError(self._path, reason) from error
        self.check_unchanged(self.stamp)

    def check_unchanged(self, stamp: "Stamp") -> None:
        """Raise an AudioError unless the file still has a `stamp`."""
        if _stamp_of(self._path) != stamp:
            raise AudioError(self._path, "has changed while it was read")

    def _read_streams(self, source: Source, found: Found) -> Iterator[np.ndarray]:
        if not found.streams:
            yield from self._of_stream(os.fsencode(self._path), 0)
        for pieces, samples in zip(found.streams, found.samples, strict=True):
            yield from self._of_stream(Pieces(source, pieces), samples)

    def _of_stream(self, opened: bytes | Pieces, counted: int) -> Iterator[np.ndarray]:
        with _Forward(opened) as file:
            self._check(file)
            there = 0
            while there < file.frames:
                wanted = min(BLOCK_SAMPLES, file.frames - there)
                block = file.read(wanted, dtype="float32", always_2d=True)
                if not len(block):
                    break
                there += len(block)
                yield block
            short = max(0, counted - there)
            missing = missing_samples(file, there, self.found.chunk)
            self.missing_samples += max(missing, short if short > DECODER_SAMPLES else 0)

    def _check(self, file: soundfile.SoundFile) -> None:
        rate_hz, channels = file.samplerate, file.channels
        if not RATES_HZ[0] <= rate_hz <= RATES_HZ[1]:
            least, most = (f"{rate:,}" for rate in RATES_HZ)
            rule = f"recordings have {least} to {most}"
            raise AudioError(self._path, f"says it has {rate_hz:,} samples a second, {rule}")
        before = (self.sample_rate_hz or rate_hz, self.channels or channels)
        if before != (rate_hz, channels):
            raise AudioError(
                self._path,
                f"changes from {before[0]:,} Hz with {before[1]} channels to {rate_hz:,} Hz with "
                f"{channels}; cut it into files of one format",
            )
        self.sample_rate_hz, self.channels = rate_hz, channels
        self.container, self.subtype = file.format, file.subtype


class Stamp(NamedTuple):
    """The identity of a file: device, inode, size in bytes and modification time in ns."""

    device: int
    inode: int
    size: int
    modified: int


def _stamp_of(path: Path) -> Stamp:
    try:
        status = os.stat(path)
    except OSError as error:
        missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
        why = "no such file" if missing else reason_of(error)
        raise AudioError(path, why) from error
    if not stat.S_ISREG(status.st_mode):
        raise AudioError(path, "is not a file")
    if status.st_size == 0:
        raise AudioError(path, "holds zero bytes")
    return Stamp(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def missing_samples(file: soundfile.SoundFile, there: int, chunk: AudioChunk) -> int:
    """Return how many samples per channel a header announces beyond the `there` that were read."""
    if chunk.held < chunk.promised < UNKNOWN_BYTES and there:
        return math.ceil((chunk.promised - chunk.held) * there / chunk.held)
    least = 0 if file.subtype.startswith(EXACT) else DECODER_SAMPLES
    missing = file.frames - there
    return missing if least < missing < UNKNOWN_SAMPLES else 0


def reason_of(error: Exception) -> str:
    """Return the cause of an error as one line of text without a final period."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(getattr(error, "error_string", "") or error)
    return " ".join(text.split()).rstrip(".")
