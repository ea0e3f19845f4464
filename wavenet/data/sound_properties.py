"""Properties and mono mix of audio files, computed block by block."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from wavenet.data.sound_file import AudioError, SoundFile, Stamp

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
      missing_samples: number of samples per channel that are announced by the header but missing.
      unread_bytes: number of unread bytes after the end of the audio according to the header.
      endless: whether the header says that the length of the audio is unknown.
      has_own_length: whether one header accounts for all of the audio.
      container: name of the container in libsndfile, such as "WAV".
      subtype: name of the samples' encoding in libsndfile, such as "PCM_16".
      offset: mean of the mono mix that is taken out of it (`offset_of`), or 0.
      stamp: identity, size and modification time of the file.
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
        sample_rate_hz=read.sample_rate_hz,
        channels=read.channels,
        clipped_share=at_full_scale / total,
        cancelled=mixed.cancels,
        loudest=mixed.loudest,
        missing_samples=read.missing_samples,
        unread_bytes=read.found.chunk.unread,
        endless=read.found.endless,
        has_own_length=read.found.has_own_length,
        container=read.container,
        subtype=read.subtype,
        offset=mixed.offset,
        stamp=read.stamp,
    )


def mono_blocks(path: Path, found: SoundProperties) -> Iterator[np.ndarray]:
    """Yield the mono mix of a file with known properties in blocks, float32 [samples]."""
    read, mixed = SoundFile(path), Mixdown(found.channels)
    read.check_unchanged(found.stamp)
    for block in read.blocks():
        mean = block[:, found.loudest] if found.cancelled else mixed.add(block)
        yield without_offset(mean, found.offset)
    read.check_unchanged(found.stamp)
