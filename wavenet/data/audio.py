"""Audio files: their properties, resampling, writing and levels, also of those read in pieces.

A waveform is float32 in [-1, 1]. A 16-bit sample s in [-32768, 32767] is represented by `(2 s + 1)
/ 65535`. This equals `2 level / 65535 - 1` for the level s + 32768, so 16-bit samples can be
converted to waveforms and levels without loss. Silence (s = 0) is 1/65535.

A recording is brought to the model's level to compute frames. Waveforms that the model generates
from them have the model's level, and are brought back to the recording's level.
"""

import contextlib
import dataclasses
import functools
import io
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import soxr

from onepass.foundation.files import replacing
from onepass.foundation.rules import check_unmasked, must_be
from wavenet.data.decoding import AudioError, SoundFile, Stamp, reason_of
from wavenet.features.frames import FramesInPieces

FULL_SCALE = 1.0 - 2.5 / 65535  # reached by the two outermost 16-bit values on either side
CANCELLED = 0.1  # threshold relative to the power of the mean of uncorrelated channels
# A mean is taken out from this amplitude on, and from this share of the RMS around it.
LEAST_OFFSET, OFFSET_SHARE = 0.001, 0.1
OFFSET_SAMPLES = 1000  # of fewer samples, a mean may well be that of a sound


class Mixdown:
    """A mono mix, block by block, that detects channels that cancel, as one and its negative do."""

    def __init__(self, channels: int) -> None:
        self._powers, self._mixed = np.zeros(channels), 0.0
        self._sums, self._samples = np.zeros(channels), 0

    def add(self, block: np.ndarray) -> np.ndarray:
        """Add a block [samples, channels] and return its channel mean, float32 [samples]."""
        with np.errstate(over="ignore", invalid="ignore"):  # the caller rejects infinities
            mean = block.mean(axis=1, dtype=np.float32)
            self._powers += np.square(block, dtype=np.float64).sum(0)
            self._sums += block.sum(0, dtype=np.float64)
            self._samples += len(block)
            self._mixed += float(np.square(mean, dtype=np.float64).sum())
        return mean

    @property
    def loudest(self) -> int:
        """Index of the channel with the most power."""
        return int(np.argmax(self._powers))

    @property
    def cancels(self) -> bool:
        """Return whether the mean has far less power than that of uncorrelated channels."""
        return bool(self._mixed < CANCELLED * self._powers.sum() / self._powers.size**2)

    @property
    def offset(self) -> float:
        """The `offset_of` the mix, or of the loudest channel if the channels cancel."""
        if self.cancels:
            return offset_of(self._sums[self.loudest], self._powers[self.loudest], self._samples)
        return offset_of(self._sums.mean(), self._mixed, self._samples)


def offset_of(total: float, power: float, samples: int) -> float:
    """Return the mean of a waveform if it must be taken out, or 0.

    A constant voltage of a recorder is no sound, but counts as a rumble in frames and as loudness
    in levels: with a mean of half the RMS of speech, a vocoder's output below 50 Hz is 12 dB weaker
    than all of it, with a tenth 25 dB, as in many recordings. A mean that is smaller than that is
    left, so that faultless recordings are not changed.
    """
    if samples < OFFSET_SAMPLES:
        return 0.0
    mean = float(total) / samples
    around = math.sqrt(max(0.0, float(power) / samples - mean**2))
    return mean if abs(mean) >= max(LEAST_OFFSET, OFFSET_SHARE * around) else 0.0


def without_offset(waveform: np.ndarray, offset: float | None = None) -> np.ndarray:
    """Return a waveform without its `offset`, as float32 [samples]; None: its own `offset_of`."""
    if offset is None:
        exact = np.asarray(waveform, np.float64)
        offset = offset_of(exact.sum(), np.square(exact).sum(), exact.size)
    return (waveform - np.float32(offset)).astype(np.float32) if offset else waveform


@dataclasses.dataclass(frozen=True, kw_only=True)
class SoundProperties:
    """Properties of a decoded file.

    Attributes:
      clipped_share: share of samples, over all channels, at full scale, in [0, 1].
      cancelled: whether the channels cancel in the mono mix, so that the loudest one is used.
      has_own_length: whether one header accounts for all of the audio.
      offset: mean of the mono mix that is taken out of it (`offset_of`), or 0.
    """

    samples: int
    sample_rate_hz: int
    channels: int
    clipped_share: float
    cancelled: bool
    loudest: int
    missing_samples: int
    unread_bytes: int
    endless: bool
    has_own_length: bool
    container: str
    subtype: str
    offset: float
    stamp: Stamp

    def notes(self, to_hz: int | None = None) -> list[str]:
        """Return remarks for the user about a file that is resampled to `to_hz`, one fact each."""
        notes = []
        if self.cancelled:
            notes.append(f"its {self.channels} channels cancel each other, the loudest is taken")
        if self.missing_samples:
            there = self.samples / self.sample_rate_hz
            promised = there + self.missing_samples / self.sample_rate_hz
            notes.append(f"is cut off: its header promises {promised:.2f} s, it has {there:.2f} s")
        if self.unread_bytes:
            notes.append(
                f"is read up to the end given in its header, {self.unread_bytes:,} bytes "
                "before the end of the file"
            )
        if self.endless:
            notes.append("has no length in its header, and is read up to the end of the file")
        if self.offset:
            level_db = 20.0 * math.log10(abs(self.offset))
            notes.append(f"has a constant offset of {level_db:.1f} dB, which is taken out")
        if to_hz not in (None, self.sample_rate_hz):
            notes.append(f"is resampled from {self.sample_rate_hz:,} Hz to {to_hz:,} Hz")
        return notes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sound(SoundProperties):
    """A decoded file, with its mono `waveform`, float32 [samples]."""

    waveform: np.ndarray


OF_FILE = (
    *("sample_rate_hz", "channels", "missing_samples", "endless"),
    *("has_own_length", "container", "subtype", "stamp"),
)


def properties(path: Path, take: Callable[[np.ndarray], object] | None = None) -> SoundProperties:
    """Return a file's properties; `take` gets each block's mean of channels, with its offset."""
    read = SoundFile(path)
    mixed, at_full_scale, total = None, 0, 0
    for block in read.blocks():
        mixed = mixed or Mixdown(read.channels)
        at_full_scale += int(np.count_nonzero(np.abs(block) >= FULL_SCALE))
        total += block.size
        mean = mixed.add(block)
        if not np.all(np.isfinite(mean)):
            raise AudioError(path, "holds NaN or infinite samples")
        if take is not None:
            take(mean)
    if mixed is None:
        raise AudioError(path, "holds no samples")
    return SoundProperties(
        samples=total // read.channels,
        clipped_share=at_full_scale / total,
        cancelled=mixed.cancels,
        loudest=mixed.loudest,
        unread_bytes=read.chunk.unread,
        offset=mixed.offset,
        **{name: getattr(read, name) for name in OF_FILE},
    )


def mono_blocks(path: Path, found: SoundProperties) -> Iterator[np.ndarray]:
    """Yield the mono mix of a file with known properties in blocks, float32 [samples]."""
    read, mixed = SoundFile(path), Mixdown(found.channels)
    read.check_unchanged(found.stamp)
    for block in read.blocks():
        mean = block[:, found.loudest] if found.cancelled else mixed.add(block)
        yield without_offset(mean, found.offset)
    read.check_unchanged(found.stamp)


SUFFIXES = (".aif", ".aiff", ".flac", ".mp3", ".ogg", ".opus", ".wav")
LOWEST_DB = -120.0  # lower bound of levels in dB
WRITTEN = {".flac": "FLAC", ".wav": "WAV"}


def to_int16(waveform: np.ndarray) -> np.ndarray:
    """Convert a float waveform of any shape to int16 samples, clipping values beyond [-1, 1]."""
    samples = np.rint(np.asarray(waveform, np.float64) * 32767.5 - 0.5)
    return np.clip(samples, -32768, 32767).astype(np.int16)


def from_int16(samples: np.ndarray) -> np.ndarray:
    """Convert int16 samples s to a float32 waveform (2 s + 1) / 65535; inverse of `to_int16`."""
    return ((2.0 * np.asarray(samples, np.float64) + 1.0) / 65535.0).astype(np.float32)


def read_sound(path: str | os.PathLike[str]) -> Sound:
    """Read a file at its stored rate, as the mono mix of `Mixdown` without its `offset_of`."""
    path = Path(path)
    blocks: list[np.ndarray] = []
    found = properties(path, blocks.append)
    if found.cancelled:
        blocks = list(mono_blocks(path, found))
        return Sound(**vars(found), waveform=np.concatenate(blocks))
    return Sound(**vars(found), waveform=without_offset(np.concatenate(blocks), found.offset))


def read_samples(path: str | os.PathLike[str]) -> tuple[np.ndarray, SoundProperties]:
    """Read a file without changing a sample; return the samples, int16 [samples], and properties.

    They are the stored samples if `channels` is 1 and `subtype` is "PCM_16", otherwise a mono mix.
    """
    blocks: list[np.ndarray] = []
    found = properties(Path(path), lambda block: blocks.append(to_int16(block)))
    return np.concatenate(blocks), found


def resample(waveform: np.ndarray, from_hz: int, to_hz: int) -> np.ndarray:
    """Resample a waveform with soxr at very high quality, float32 [samples * to_hz / from_hz]."""
    if to_hz < 1:
        raise ValueError(must_be("to_hz", "at least 1", to_hz))
    if from_hz == to_hz:
        return waveform
    return soxr.resample(waveform, from_hz, to_hz, quality="VHQ").astype(np.float32)


def read(path: str | os.PathLike[str], sample_rate_hz: int | None = None) -> np.ndarray:
    """Read an audio file as a mono waveform, float32 [samples], and optionally resample it."""
    sound = read_sound(path)
    if sample_rate_hz is None:
        return sound.waveform
    return resample(sound.waveform, sound.sample_rate_hz, sample_rate_hz)


def _encode_samples(samples: np.ndarray, sample_rate_hz: int, container: str) -> bytes:
    memory = io.BytesIO()
    level = 1.0 if container == "FLAC" else None
    soundfile.write(
        memory, samples, sample_rate_hz, format=container, subtype="PCM_16", compression_level=level
    )
    return memory.getvalue()


def check_samples(waveform: Any, name: str = "waveform", least: int = 1) -> np.ndarray:
    """Return a waveform as a finite floating array of `least` samples or more, [samples]."""
    check_unmasked(waveform, name)
    array = np.asarray(waveform)
    rule = f"`{name}` must be finite floating-point samples in [-1, 1], [samples]"
    if array.ndim != 1 or array.dtype.kind != "f" or array.size < least:
        raise ValueError(f"{rule}, got {array.dtype} {list(array.shape)}.")
    finite = np.isfinite(array)
    if not finite.all():
        first = int(np.argmin(finite))
        raise ValueError(f"{rule}, got {array[first]} at sample {first}.")
    return array


class _Clipping:
    """Counts the samples that `to_int16` clips in a file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path, self._clipped, self._samples = path, 0, 0

    def pcm(self, waveform: np.ndarray) -> np.ndarray:
        check_unmasked(waveform, "waveform")
        array = np.asarray(waveform)
        self._samples += array.size
        if array.dtype == np.int16 and array.ndim == 1:
            return array
        if array.dtype.kind != "f":
            raise ValueError(must_be("waveform", "floating or int16", array.dtype))
        samples = to_int16(check_samples(array, least=0))
        wide = np.rint(array.astype(np.float64) * 32767.5 - 0.5)
        self._clipped += int(np.count_nonzero(wide != samples))
        return samples

    def warn(self) -> None:
        if self._clipped:
            warnings.warn(
                f"{self._path}: {self._clipped:,} of {self._samples:,} samples are beyond [-1, 1]"
                " and were clipped; pass int16 to store samples as they are.",
                stacklevel=3,
            )


def write(path: str | os.PathLike[str], waveform: np.ndarray, sample_rate_hz: int) -> None:
    """Write a 16-bit WAV or FLAC file, depending on the suffix, atomically.

    Floating-point samples are clipped to [-1, 1], with a warning; int16 samples are stored exactly.
    """
    container = WRITTEN.get(Path(path).suffix.lower())
    if container is None:
        raise AudioError(path, "the name must end in .wav or .flac")
    clipping = _Clipping(path)
    try:
        data = _encode_samples(clipping.pcm(waveform), sample_rate_hz, container)
        with replacing(path) as temporary:
            temporary.write_bytes(data)
    except soundfile.SoundFileError as error:
        raise AudioError(path, f"cannot be written ({reason_of(error)})") from error
    clipping.warn()


@contextlib.contextmanager
def writing(
    path: str | os.PathLike[str], sample_rate_hz: int
) -> Iterator[Callable[[np.ndarray], None]]:
    """Yield a function that appends a waveform [samples] to a 16-bit WAV file, as `write` would."""
    clipping = _Clipping(path)
    try:
        with (
            replacing(path) as temporary,
            soundfile.SoundFile(temporary, "w", sample_rate_hz, 1, "PCM_16", format="WAV") as file,
        ):
            yield lambda waveform: file.write(clipping.pcm(waveform))
    except soundfile.SoundFileError as error:
        raise AudioError(path, f"cannot be written ({reason_of(error)})") from error
    clipping.warn()


def flac_bits_per_sample(samples: np.ndarray, sample_rate_hz: int) -> float:
    """Return the bits per sample of int16 [samples] in FLAC at libsndfile's best compression."""
    samples = np.asarray(samples)
    if samples.dtype != np.int16 or samples.ndim != 1 or not samples.size:
        raise ValueError(f"`samples` must be int16 [samples], got {samples.dtype} {samples.shape}.")
    return 8.0 * len(_encode_samples(samples, sample_rate_hz, "FLAC")) / samples.size


def decibel(ratio: float) -> float:
    """Convert an amplitude ratio to dB, 20 log10(ratio), but at least `LOWEST_DB`."""
    return max(LOWEST_DB, 20.0 * float(np.log10(max(ratio, 1e-30))))


def peak_db(waveform: np.ndarray) -> float:
    """Return the peak level in dB of full scale."""
    return decibel(float(np.max(np.abs(waveform))))


def rms_db(waveform: np.ndarray) -> float:
    """Return the RMS level in dB of full scale (-3.01 dB for a full-scale sine)."""
    return decibel(float(np.sqrt(np.mean(np.square(waveform, dtype=np.float64)))))


def amplify(waveform: np.ndarray, gain_db: float) -> np.ndarray:
    """Multiply a waveform by 10^(gain_db / 20), without clipping; return float32."""
    return np.asarray(waveform, np.float32) * np.float32(10.0 ** (gain_db / 20.0))


HEADROOM_DB = 0.3  # margin below full scale, since resampling can raise peaks
NEAR_DB = 6.0  # typical difference between a training recording's level and the median
SILENCE_DB = -80.0  # recordings with a lower RMS are treated as silent
KNEE = 0.95  # amplitude above which peaks are compressed


class RecordedFrames(np.ndarray):
    """Frames of a recording, float32 [frames, channels], with the applied gain `gain_db`.

    Waveforms generated from these frames have the recording's level; waveforms generated from plain
    arrays (`np.asarray`) have the model's level. Frames that a voice draws from a density also have
    this type, with a gain of 0. By default, students refine waveforms from frames of this type.
    """

    gain_db = 0.0

    def __array_finalize__(self, origin: Any) -> None:
        """Copy the gain to slices and views."""
        self.gain_db = getattr(origin, "gain_db", 0.0)


def recorded_frames(frames: np.ndarray, gain_db: float) -> RecordedFrames:
    """Return frames as `RecordedFrames` of a recording that was amplified by `gain_db`."""
    made = np.asarray(frames, np.float32).view(RecordedFrames)
    made.gain_db = float(gain_db)
    return made


def is_recorded(condition: Any) -> bool:
    """Return whether frames are from a recording, or were drawn from a voice's density."""
    return isinstance(condition, RecordedFrames | FramesInPieces)


def gain_of(condition: Any) -> float:
    """Return the gain in dB that was applied to the frames' recording; 0 for plain frames."""
    return getattr(condition, "gain_db", 0.0)


def level_gain_db(waveform: np.ndarray, gain_db: float, level_db: float | None) -> float:
    """Return the gain in dB that brings a recording to a model's level.

    It is the gain of the training recordings, adjusted if necessary so that the RMS is within
    `NEAR_DB` of theirs after the gain, `level_db` if known, and the peak is not amplified above
    full scale. The RMS of a silent recording is ignored.
    """
    return gain_of_levels_db(rms_db(waveform), peak_db(waveform), gain_db, level_db)


def gain_of_levels_db(
    stored_db: float, peak: float, gain_db: float, level_db: float | None
) -> float:
    """Return `level_gain_db` for a recording with RMS `stored_db` and peak `peak`, in dB."""
    if level_db is not None and stored_db > SILENCE_DB:
        gain_db = float(
            np.clip(gain_db, level_db - NEAR_DB - stored_db, level_db + NEAR_DB - stored_db)
        )
    return min(gain_db, below_full_scale_db(peak))


def below_full_scale_db(peak: float) -> float:
    """Return the largest gain in dB, 0 or more, for a peak `HEADROOM_DB` below full scale."""
    return max(0.0, -HEADROOM_DB - peak)


def level_of(spec: Mapping[str, Any]) -> float | None:
    """Return the measured `level_db` in a model.json, else the configured one, else None."""
    data = spec.get("config", {}).get("data") or {}
    return spec.get("level_db", data.get("level_db"))


def at_recorded_level(sound: np.ndarray, gain_db: float) -> np.ndarray:
    """Undo the gain `gain_db` of a recording in a waveform generated by a model.

    If the gain is negative, peaks are compressed to stay below full scale. This is done sample by
    sample, so the result does not depend on the chunk length.
    """
    if not gain_db:
        return sound
    given_back = amplify(sound, -gain_db)
    return given_back if gain_db > 0 else bent(given_back)


def bent(waveform: np.ndarray) -> np.ndarray:
    """Compress amplitudes above `KNEE` smoothly, so that they stay below full scale."""
    size = np.abs(waveform)
    above = KNEE + (1.0 - KNEE) * np.tanh((size - KNEE) / (1.0 - KNEE))
    return np.where(size > KNEE, np.sign(waveform) * above, waveform).astype(np.float32)


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
        total = _Squares(self.blocks()).sum_of(self.samples)
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
