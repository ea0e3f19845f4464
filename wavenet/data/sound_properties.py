"""Properties of a sound file, and the mix of its channels, both block by block."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from wavenet.data.sound_file import AudioError, SoundFile

FULL_SCALE = 1.0 - 2.5 / 65535  # the two outermost 16-bit samples on either side
CANCELLED = 0.1  # of the power that the mean of unrelated channels would have


class Mixdown:
    """The mean of the channels, block by block, and whether they cancel each other in it.

    Channels cancel if one is another one negated: their mean is silent although neither is.
    """

    def __init__(self, channels: int) -> None:
        self._powers, self._mixed = np.zeros(channels), 0.0

    def add(self, block: np.ndarray) -> np.ndarray:
        """Add a block [samples, channels], and return its mean, float32 [samples]."""
        with np.errstate(over="ignore", invalid="ignore"):  # infinities, which the reader refuses
            mean = block.mean(axis=1, dtype=np.float32)
            self._powers += np.square(block, dtype=np.float64).sum(0)
            self._mixed += float(np.square(mean, dtype=np.float64).sum())
        return mean

    @property
    def loudest(self) -> int:
        """Index of the channel with the greatest power."""
        return int(np.argmax(self._powers))

    @property
    def cancels(self) -> bool:
        """True if the mean has lost nearly all of the channels' power."""
        return bool(self._mixed < CANCELLED * self._powers.sum() / self._powers.size**2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SoundProperties:
    """Properties of a decoded file.

    Attributes:
      samples: number of samples per channel.
      sample_rate_hz: the stored sample rate.
      channels: the stored number of channels.
      clipped_share: share of all samples, of all channels, at full scale.
      cancelled: whether the channels cancel each other, so that the sound is only the loudest one.
      loudest: index of the loudest channel.
      missing_samples: number of samples that the header promises but the file does not hold.
      unread_bytes: number of bytes after the length of sound that the header gives, which are not
        read.
    """

    samples: int
    sample_rate_hz: int
    channels: int
    clipped_share: float
    cancelled: bool
    loudest: int
    missing_samples: int
    unread_bytes: int

    def notes(self, to_hz: int | None = None) -> list[str]:
        """Return remarks for a listener about the file, resampled to `to_hz`, one fact each."""
        notes = []
        if self.cancelled:
            notes.append(f"its {self.channels} channels cancel each other, the loudest is taken")
        if self.missing_samples:
            there = self.samples / self.sample_rate_hz
            promised = there + self.missing_samples / self.sample_rate_hz
            notes.append(f"is cut off: its header promises {promised:.2f} s, it has {there:.2f} s")
        if self.unread_bytes:
            notes.append(
                f"is read up to the end that its header says, {self.unread_bytes:,} bytes before "
                "that of the file"
            )
        if to_hz not in (None, self.sample_rate_hz):
            notes.append(f"is resampled from {self.sample_rate_hz:,} Hz to {to_hz:,} Hz")
        return notes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sound(SoundProperties):
    """A decoded file.

    Attributes:
      waveform: float32 [samples], mono.
    """

    waveform: np.ndarray


def properties(path: Path, take: Callable[[np.ndarray], object] | None = None) -> SoundProperties:
    """Return the properties of a file, which is read once.

    Args:
      path: the sound file.
      take: called with the mean of the channels of every block, float32 [samples].

    Raises:
      AudioError: the file cannot be read (`SoundFile`), has no samples, or has samples that are not
        finite.
    """
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
        unread_bytes=read.unread_bytes,
    )


def mono_blocks(path: Path, found: SoundProperties) -> Iterator[np.ndarray]:
    """Yield the sound of a file with these properties in mono blocks, float32 [samples].

    Raises:
      AudioError: the file can no longer be read, or has changed in the meantime.
    """
    read, there = SoundFile(path), 0
    mixed = Mixdown(found.channels)
    for block in read.blocks():
        there += len(block)
        if read.channels != found.channels or there > found.samples:
            break
        yield block[:, found.loudest] if found.cancelled else mixed.add(block)
    if read.channels != found.channels or there != found.samples:
        raise AudioError(path, "has changed while it was read")
