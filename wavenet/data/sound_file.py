"""Decoding of a sound file, block by block to its end, regardless of what its headers say."""

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
RATES_HZ = (1_000, 1_000_000)  # of recordings; a damaged header may have any number
PROMISED = re.compile(r"^\s*(?:data|SSND) : (\d+) \(should be (\d+)\)", re.MULTILINE)
UNKNOWN_BYTES = 0x7FFFF000  # and more: what a header says of a stream whose end is not known
UNKNOWN_SAMPLES = 1 << 60  # and more, likewise
DECODER_SAMPLES = 4096  # by which a lossy format's header may be wrong


class AudioError(UserError):
    """A sound file that cannot be read or written; the message is one line that names the file.

    Attributes:
      reason: the cause, without the name.
    """

    def __init__(self, path: object, reason: str) -> None:
        super().__init__(f"{shown(path)}: {reason}.")
        self.reason = reason


class _Forward(soundfile.SoundFile):
    """A sound file that is only read forward."""

    def seekable(self) -> bool:
        """Return False, so that the decoder does not seek after every block."""
        return False


class SoundFile:
    """A sound file to be read from its beginning to its end.

    Several consecutive streams in one file are one sound.

    Attributes:
      sample_rate_hz: the stored sample rate; known after the first block.
      channels: the stored number of channels; known after the first block.
      missing_samples: number of samples per channel that a header promises but the file does not
        hold; known after the last block.
      unread_bytes: number of bytes after the sound that its header does not account for.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.sample_rate_hz = self.channels = self.missing_samples = self.unread_bytes = 0

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield the samples, float32 [up to `BLOCK_SAMPLES`, channels]; s is (2 s + 1) / 65535.

        Raises:
          AudioError: the file is missing, empty, not sound, truncated (in formats that can tell),
            changes its rate or channels, or has an impossible rate.
        """
        _check_file(self._path)
        try:
            with open(self._path, "rb") as file:
                source = Source(file)
                found = found_in(source)
                self.unread_bytes = found.unread_bytes
                for stored in self._stored(source, found):
                    # libsndfile gives s / 32768. Callers handle infinities.
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
    """Return the number of samples per channel that a header promises beyond the `there` read."""
    said = PROMISED.search(file.extra_info)
    if said is None:
        missing = file.frames - there
        return missing if DECODER_SAMPLES < missing < UNKNOWN_SAMPLES else 0
    promised, held = int(said[1]), int(said[2])
    if promised >= UNKNOWN_BYTES or not held:
        return 0
    return max(0, round((promised - held) * file.frames / held))


def reason_of(error: Exception) -> str:
    """Return the cause of a file's error, in one line without a full stop."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(getattr(error, "error_string", "") or error)
    return " ".join(text.split()).rstrip(".")
