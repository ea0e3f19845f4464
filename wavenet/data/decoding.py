"""Decoding of audio files to their end, which is not always where their header says.

libsndfile decodes what the header accounts for. Where FFmpeg, if PyAV is installed, finds more in
a compressed file, it decodes that file: MP3 and FLAC files whose headers count too few samples,
files that were joined end to end, and chained Ogg streams are then read whole. Without it the bytes
that libsndfile leaves unread are counted.
"""

import contextlib
import errno
import math
import os
import stat
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
import soundfile

from onepass.foundation.files import show_path
from onepass.foundation.rules import UserError
from wavenet.optional_packages import is_installed

BLOCK_SAMPLES = 1 << 18
RATES_HZ = (1_000, 1_000_000)  # plausible sample rates; a damaged header may have any number
UNKNOWN_SAMPLES = 1 << 60  # this and larger numbers mean that a stream's length is unknown
# A writer that cannot go back to the header, or has not yet done so, promises at least this many
# bytes, to say that the length is unknown.
UNKNOWN_BYTES = 0x7FFFF000
DECODER_SAMPLES = 4096  # tolerance for the length in a lossy format's header
EXACT = ("PCM_", "FLOAT", "DOUBLE", "ULAW", "ALAW")  # beginnings of subtypes without a tolerance
COMPRESSED = ("FLAC", "MP3", "MPEG", "OGG")  # containers, by libsndfile's names, that may be joined
MPEG_HEAD_BYTES = 1 << 20  # within which an MP3 file has its encoder's header, after tags
LITTLE, BIG = (b"RIFF", b"RF64"), (b"FORM", b"RIFX")
PRINTABLE = frozenset(string.printable.encode())
OFFSET_BYTES = {b"data": 0, b"SSND": 8}  # fields of an audio chunk before its audio
PADDING_BYTES = 1024  # maximum size of meaningless padding that programs append
Stamp = tuple[int, int, int, int]  # the identity of a file: device, inode, bytes, ns of its change


class AudioError(UserError):
    """An error in reading or writing an audio file, with a one-line message that names the file."""

    def __init__(self, path: object, reason: str) -> None:
        super().__init__(f"{show_path(path)}: {reason}.")
        self.reason = reason


class AudioChunk(NamedTuple):
    """The audio chunk of a WAV or AIFF file, all zeros for other files.

    The header promises so many bytes, of which the file has `held`. After them, `unread` bytes do
    not belong to a chunk: if the stated length of the audio is too small, these are the rest of it.
    Up to `PADDING_BYTES` count as 0.
    """

    promised: int = 0
    held: int = 0
    unread: int = 0


def find_audio_chunk(file: BinaryIO) -> AudioChunk:
    """Find the audio chunk of a WAV or AIFF file."""
    size = file.seek(0, os.SEEK_END)

    def read(place: int, count: int) -> bytes:
        file.seek(place)
        return file.read(count)

    kind = read(0, 4)
    if kind not in LITTLE + BIG:
        return AudioChunk()
    order: Literal["big", "little"] = "big" if kind in BIG else "little"
    place, heard, long_bytes = 12, False, 0
    promised = held = 0
    while place + 8 <= size:
        head = read(place, 8)
        name, length = head[:4], int.from_bytes(head[4:], order)
        if name == b"ds64":  # holds the length of the sound if it does not fit into four bytes
            long_bytes = int.from_bytes(read(place + 16, 8), "little")
        if name in OFFSET_BYTES and length == 0xFFFFFFFF and long_bytes:
            length = long_bytes
        end = place + 8 + length
        if not PRINTABLE.issuperset(name) or (heard and end > size):
            break
        if name in OFFSET_BYTES and not heard:
            promised = max(0, length - OFFSET_BYTES[name])
            held = max(0, min(promised, size - place - 8 - OFFSET_BYTES[name]))
        heard = heard or name in OFFSET_BYTES
        place = end + length % 2
    left = size - place
    return AudioChunk(promised, held, left if heard and left > PADDING_BYTES else 0)


class SoundFile:
    """A reader of audio files; consecutive streams in a file are read as one recording.

    The first block sets all attributes but two, which the last block sets: `missing_samples`, the
    samples per channel that the header promises and the file does not have, and `is_joined`,
    whether the file has more samples than its header says. `endless` is whether the header says
    that the length is unknown; container and subtype are libsndfile's names.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.sample_rate_hz = self.channels = self.missing_samples = 0
        self.container = self.subtype = ""
        self.chunk, self.stamp = AudioChunk(), (0, 0, 0, 0)
        self.endless = self.is_joined = False

    @property
    def has_own_length(self) -> bool:
        """Return whether the header accounts for all of the audio."""
        return not (self.is_joined or self.chunk.unread or self.endless)

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield float32 [up to `BLOCK_SAMPLES`, channels]; 16-bit s becomes (2 s + 1) / 65535."""
        self.stamp = _stamp_of(self._path)
        try:
            with open(self._path, "rb") as file:
                self.chunk = find_audio_chunk(file)
                file.seek(0)
                is_compressed = soundfile.info(os.fsencode(self._path)).format in COMPRESSED
                with _Forward(file if is_compressed else os.fsencode(self._path)) as decoder:
                    yield from self._read(decoder, is_compressed)
                if is_compressed and not is_installed("av"):
                    unread = os.path.getsize(self._path) - file.tell()
                    self.chunk = AudioChunk(0, 0, unread if unread > PADDING_BYTES else 0)
        except (soundfile.SoundFileError, OSError) as error:
            self.check_unchanged(self.stamp)
            reason = f"cannot be read as sound ({reason_of(error)})"
            raise AudioError(self._path, reason) from error
        self.check_unchanged(self.stamp)

    def check_unchanged(self, stamp: Stamp) -> None:
        """Raise an AudioError unless the file still has a `stamp`."""
        if _stamp_of(self._path) != stamp:
            raise AudioError(self._path, "has changed while it was read")

    def _read(self, file: soundfile.SoundFile, is_compressed: bool) -> Iterator[np.ndarray]:
        self.container, self.subtype = file.format, file.subtype
        chunk = self.chunk
        is_unknown = chunk.promised >= UNKNOWN_BYTES and chunk.promised > chunk.held
        self.endless = is_unknown or file.frames >= UNKNOWN_SAMPLES
        promised = 0 if self.endless else file.frames
        counted = self._count_by_ffmpeg() if is_compressed and is_installed("av") else 0
        self.is_joined = counted > promised + _tolerance(file.subtype)
        if not self.is_joined:
            self._check(file.samplerate, file.channels)
        there = 0
        for stored in self._decode_by_ffmpeg() if self.is_joined else _decode(file):
            there += len(stored)
            # Decoders return s / 32768. Callers handle infinities.
            with np.errstate(over="ignore", invalid="ignore"):
                shifted = stored * np.float32(65536.0) + np.float32(1.0)
                yield shifted / np.float32(65535.0)
        if file.format == "MP3" and not self._counts_frames():
            promised = 0  # what libsndfile says is estimated from the first frame
        self.missing_samples = missing_samples(promised, there, self.chunk, file.subtype)

    def _counts_frames(self) -> bool:
        """Return whether an MP3 file has an encoder's header with the number of frames."""
        with open(self._path, "rb") as file:
            head = file.read(MPEG_HEAD_BYTES)
        return any(name in head for name in (b"Xing", b"Info", b"VBRI"))

    def _count_by_ffmpeg(self) -> float:
        """Return the number of samples per channel in all of the file's frames."""
        import av

        try:
            with av.open(os.fspath(self._path)) as container:
                stream = container.streams.audio[0]
                ticks = sum(packet.duration or 0 for packet in container.demux(stream))
                return float(ticks * (stream.time_base or 0) * stream.sample_rate)
        except (av.FFmpegError, IndexError, ValueError):
            return 0.0

    def _decode_by_ffmpeg(self) -> Iterator[np.ndarray]:
        """Yield what FFmpeg decodes of all frames of a file, passing over damaged ones."""
        import av

        kept: list[np.ndarray] = []
        samples = 0
        try:
            with av.open(os.fspath(self._path)) as container:
                for packet in container.demux(audio=0):
                    frames: list[Any] = []
                    with contextlib.suppress(av.InvalidDataError):
                        frames = list(packet.decode())
                    for frame in frames:
                        self._check(frame.sample_rate, frame.layout.nb_channels)
                        kept.append(_samples_of(frame))
                        samples += len(kept[-1])
                        if samples >= BLOCK_SAMPLES:
                            yield np.concatenate(kept)
                            kept, samples = [], 0
        except (av.FFmpegError, IndexError, ValueError) as error:
            raise AudioError(self._path, f"cannot be read as sound ({reason_of(error)})") from error
        if kept:
            yield np.concatenate(kept)

    def _check(self, rate_hz: int, channels: int) -> None:
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


class _Forward(soundfile.SoundFile):
    def seekable(self) -> bool:
        """Return False, so that the decoder does not seek after every block."""
        return False


def _decode(file: soundfile.SoundFile) -> Iterator[np.ndarray]:
    there = 0
    while there < file.frames:
        wanted = min(BLOCK_SAMPLES, file.frames - there)
        block = file.read(wanted, dtype="float32", always_2d=True)
        if not len(block):
            break
        there += len(block)
        yield block


def _samples_of(frame: Any) -> np.ndarray:
    """Return a frame's samples in [-1, 1], float32 [samples, channels]."""
    samples = frame.to_ndarray()
    samples = samples.T if frame.format.is_planar else samples.reshape(-1, frame.layout.nb_channels)
    if samples.dtype.kind == "f":
        return samples.astype(np.float32)
    return (samples / 2.0 ** (8 * samples.dtype.itemsize - 1)).astype(np.float32)


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
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def missing_samples(promised: int, there: int, chunk: AudioChunk, subtype: str) -> int:
    """Return how many samples per channel a header promises beyond the `there` that were read."""
    if chunk.held < chunk.promised < UNKNOWN_BYTES and there:
        return math.ceil((chunk.promised - chunk.held) * there / chunk.held)
    missing = promised - there
    return missing if missing > _tolerance(subtype) else 0


def _tolerance(subtype: str) -> int:
    return 0 if subtype.startswith(EXACT) else DECODER_SAMPLES


def reason_of(error: Exception) -> str:
    """Return the cause of an error as one line of text without a final period."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(getattr(error, "error_string", "") or error)
    return " ".join(text.split()).rstrip(".")
