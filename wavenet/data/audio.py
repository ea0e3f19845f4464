"""Sound files, their levels, and the input of a lossless codec.

A waveform is float32 in [-1, 1]. A 16-bit sample s in [-32768, 32767] has the value `(2 s + 1) /
65535`, so that level s + 32768 of 65536 is `2 level / 65535 - 1`: integer samples pass through a
waveform, and through a likelihood over levels, without loss. Silence (s = 0) is 1/65535.
"""

import contextlib
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import soundfile
import soxr

from foundation.atomic_files import replacing
from wavenet.data.sound_file import AudioError, reason_of
from wavenet.data.sound_properties import FULL_SCALE, Sound, mono_blocks, properties

SUFFIXES = (".aif", ".aiff", ".flac", ".mp3", ".ogg", ".opus", ".wav")
LOWEST_DB = -120.0  # dB, as which digital silence is reported
WRITTEN = {".flac": "FLAC", ".wav": "WAV"}


def to_int16(waveform: np.ndarray) -> np.ndarray:
    """Return int16 samples of a float waveform of any shape; values beyond [-1, 1] are clipped."""
    samples = np.rint(np.asarray(waveform, np.float64) * 32767.5 - 0.5)
    return np.clip(samples, -32768, 32767).astype(np.int16)


def from_int16(samples: np.ndarray) -> np.ndarray:
    """Return the float32 waveform (2 s + 1) / 65535 of int16 samples; inverse of `to_int16`."""
    return ((2.0 * np.asarray(samples, np.float64) + 1.0) / 65535.0).astype(np.float32)


def read_sound(path: str | os.PathLike[str]) -> Sound:
    """Read a file at its own sample rate, mixed to mono: the mean of its channels.

    If the channels cancel each other, the loudest is taken (`Mixdown`).

    Raises:
      AudioError: the file is missing, empty, not sound, truncated (in formats that can tell), has
        an impossible rate, or holds numbers that are not finite.
    """
    path = Path(path)
    blocks: list[np.ndarray] = []
    found = properties(path, blocks.append)
    if found.cancelled:
        blocks = list(mono_blocks(path, found))
    return Sound(**vars(found), waveform=np.concatenate(blocks))


def resample(waveform: np.ndarray, from_hz: int, to_hz: int) -> np.ndarray:
    """Return float32 [samples * to_hz / from_hz], band-limited (soxr, very high quality)."""
    if to_hz < 1:
        raise ValueError(f"`to_hz` must be at least 1, got {to_hz}.")
    if from_hz == to_hz:
        return waveform
    return soxr.resample(waveform, from_hz, to_hz, quality="VHQ").astype(np.float32)


def read(path: str | os.PathLike[str], sample_rate_hz: int | None = None) -> np.ndarray:
    """Read a sound file as a mono waveform, float32 [samples], resampled to a rate if one is given.

    Raises:
      AudioError: the file cannot be read, has no samples, or has samples that are not finite.
    """
    sound = read_sound(path)
    if sample_rate_hz is None:
        return sound.waveform
    return resample(sound.waveform, sound.sample_rate_hz, sample_rate_hz)


def _encoded(samples: np.ndarray, sample_rate_hz: int, container: str) -> bytes:
    memory = io.BytesIO()
    level = 1.0 if container == "FLAC" else None
    soundfile.write(
        memory, samples, sample_rate_hz, format=container, subtype="PCM_16", compression_level=level
    )
    return memory.getvalue()


def _pcm(waveform: np.ndarray) -> np.ndarray:
    waveform = np.asarray(waveform)
    if waveform.ndim != 1:
        raise ValueError(f"`waveform` must have the shape [samples], got {waveform.shape}.")
    if waveform.dtype == np.int16:
        return waveform
    if waveform.dtype.kind != "f":
        raise ValueError(f"`waveform` must be floating or int16, got {waveform.dtype}.")
    if not np.all(np.isfinite(waveform)):
        raise ValueError("`waveform` must be finite, got NaN or infinity.")
    return to_int16(waveform)


def write(path: str | os.PathLike[str], waveform: np.ndarray, sample_rate_hz: int) -> None:
    """Write 16-bit PCM, as `.wav` or `.flac` by the suffix; the file is complete or absent.

    A floating-point waveform [samples] is clipped to [-1, 1]; int16 is stored exactly.

    Raises:
      AudioError: the file cannot be written.
      ValueError: the waveform is not [samples] of floats or int16.
    """
    container = WRITTEN.get(Path(path).suffix.lower())
    if container is None:
        raise AudioError(path, "the name must end in .wav or .flac")
    try:
        data = _encoded(_pcm(waveform), sample_rate_hz, container)
        with replacing(path) as temporary:
            temporary.write_bytes(data)
    except (soundfile.SoundFileError, OSError) as error:
        raise AudioError(path, f"cannot be written ({reason_of(error)})") from error


@contextlib.contextmanager
def writing(
    path: str | os.PathLike[str], sample_rate_hz: int
) -> Iterator[Callable[[np.ndarray], None]]:
    """Yield a function that appends [samples] in [-1, 1] to a WAV file.

    The file appears when the block ends; a block that raises leaves none. Only the current piece is
    kept in memory.

    Raises:
      AudioError: the file cannot be written.
    """
    try:
        with (
            replacing(path) as temporary,
            soundfile.SoundFile(temporary, "w", sample_rate_hz, 1, "PCM_16", format="WAV") as file,
        ):
            yield lambda waveform: file.write(_pcm(waveform))
    except (soundfile.SoundFileError, OSError) as error:
        raise AudioError(path, f"cannot be written ({reason_of(error)})") from error


def flac_bits_per_sample(samples: np.ndarray, sample_rate_hz: int) -> float:
    """Return bits per sample of int16 [samples] in libsndfile's best FLAC, including the header."""
    samples = np.asarray(samples)
    if samples.dtype != np.int16 or samples.ndim != 1 or not samples.size:
        raise ValueError(f"`samples` must be int16 [samples], got {samples.dtype} {samples.shape}.")
    return 8.0 * len(_encoded(samples, sample_rate_hz, "FLAC")) / samples.size


def decibel(ratio: float) -> float:
    """Return 20 log10(ratio) in dB, at least `LOWEST_DB`."""
    return max(LOWEST_DB, 20.0 * float(np.log10(max(ratio, 1e-30))))


def peak_db(waveform: np.ndarray) -> float:
    """Return the largest magnitude in dB re full scale."""
    return decibel(float(np.max(np.abs(waveform))))


def rms_db(waveform: np.ndarray) -> float:
    """Return the root mean square in dB re full scale (a full-scale sine is -3.01 dB)."""
    return decibel(float(np.sqrt(np.mean(np.square(waveform, dtype=np.float64)))))


def clipped_share(waveform: np.ndarray) -> float:
    """Return the share of the samples, in [0, 1], at full scale."""
    return float(np.mean(np.abs(waveform) >= FULL_SCALE))


def amplify(waveform: np.ndarray, gain_db: float) -> np.ndarray:
    """Return the waveform times 10^(gain_db / 20), float32; nothing is clipped."""
    return np.asarray(waveform, np.float32) * np.float32(10.0 ** (gain_db / 20.0))
