"""Decoding of audio files block by block to the end, even if their headers are wrong."""

import errno
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import soundfile

from foundation.errors import UserError
from foundation.folders import shown
from wavenet.data.streams import Found, Pieces, Source, found_in

BLOCK_SAMPLES = 1 << 18
RATES_HZ = (1_000, 1_000_000)  # plausible sample rates; a damaged header may have any number
PROMISED = re.compile(r"^\s*(?:data|SSND) : (\d+) \(should be (\d+)\)", re.MULTILINE)
UNKNOWN_BYTES = 0x7FFFF000  # this and larger lengths mean that a stream's length is unknown
UNKNOWN_SAMPLES = 1 << 60  # likewise for a number of samples
DECODER_SAMPLES = 4096  # tolerance for the length in a lossy format's header


class AudioError(UserError):
    """An error in reading or writing an audio file, with a one-line message that names the file.

    Attributes:
      reason: the cause, without the name of the file.
    """

    def __init__(self, path: object, reason: str) -> None:
        super().__init__(f"{shown(path)}: {reason}.")
        self.reason = reason


class _Forward(soundfile.SoundFile):
    """A `soundfile.SoundFile` that is only read forward."""

    def seekable(self) -> bool:
        """Return False, so that the decoder does not seek after every block."""
        return False


class SoundFile:
    """A reader of audio files; consecutive streams in a file are read as one recording.

    Attributes:
      sample_rate_hz: stored sample rate in Hz; set by the first block.
      channels: stored number of channels; set by the first block.
      missing_samples: number of samples per channel that are announced by a header but missing; set
        after the last block.
      unread_bytes: number of bytes after the audio that the header does not account for.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.sample_rate_hz = self.channels = self.missing_samples = self.unread_bytes = 0

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield blocks of samples, float32 [up to `BLOCK_SAMPLES`, channels].

        A 16-bit sample s is represented by (2 s + 1) / 65535.

        Raises:
          AudioError: If the file is missing, empty, not an audio file, truncated (in formats that
            allow detection), or its format changes or is implausible.
        """
        _check_file(self._path)
        try:
            with open(self._path, "rb") as file:
                source = Source(file)
                found = found_in(source)
                self.unread_bytes = found.unread_bytes
                for stored in self._stored(source, found):
                    # libsndfile returns s / 32768. Callers handle infinities.
                    with np.errstate(over="ignore", invalid="ignore"):
                        shifted = stored * np.float32(65536.0) + np.float32(1.0)
                        yield shifted / np.float32(65535.0)
        except (soundfile.SoundFileError, OSError) as error:
            reason = f"cannot be read as sound ({reason_of(error)})"
            raise AudioError(self._path, reason) from error

    def _stored(self, source: Source, found: Found) -> Iterator[np.ndarray]:
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
            missing = missing_samples(file, there)
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


def _check_file(path: Path) -> None:
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


def missing_samples(file: soundfile.SoundFile, there: int) -> int:
    """Return how many samples per channel a header announces beyond the `there` that were read."""
    said = PROMISED.search(file.extra_info)
    if said is None:
        missing = file.frames - there
        return missing if DECODER_SAMPLES < missing < UNKNOWN_SAMPLES else 0
    promised, held = int(said[1]), int(said[2])
    if promised >= UNKNOWN_BYTES or not held:
        return 0
    return max(0, round((promised - held) * file.frames / held))


def reason_of(error: Exception) -> str:
    """Return the cause of an error as one line of text without a final period."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(getattr(error, "error_string", "") or error)
    return " ".join(text.split()).rstrip(".")
