"""Recordings as inputs: the package's examples, and uploads, which are checked and decoded."""

import csv
import functools
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from onepass.bundles.errors import InvalidInput, NotFound, TooLarge
from serving.engine.fields import excerpt
from wavenet.data.audio import Mixdown, resample, without_offset
from wavenet.data.decoding import UNKNOWN_SAMPLES, find_audio_chunk, missing_samples
from wavenet.shipped import recordings_folder

SUBTYPES = ("PCM_S8", "PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW")
LOWEST_HZ, HIGHEST_HZ = 4_000, 192_000
MAX_CHANNELS = 8
LEAST_SAMPLES = 2  # at the model's sample rate; mel frames reflect a sound at its ends
BLOCK_SAMPLES = 1 << 16
FLAC = b"fLaC"
OWN_LENGTH = "`recording` must be one sound with its own length in its header: it holds more."
FIRST_BLOCK = b"fLaC\x00\x00\x00\x22"  # the beginning of a stream, but for one bit


@functools.cache
def examples() -> Mapping[str, dict[str, Any]]:
    """Return the example recordings by name; no shipped model was trained on them."""
    found: dict[str, dict[str, Any]] = {}
    with (recordings_folder() / "dev.tsv").open(encoding="utf-8", newline="") as registry:
        for row in csv.DictReader(registry, delimiter="\t"):
            name = Path(row["file"]).stem
            seconds = round(soundfile.info(str(example_path(name))).duration, 2)
            found[name] = {"name": name, "text": row["text"], "seconds": seconds}
    return found


def example_path(name: str) -> Path:
    """Return the path of an example's file."""
    return recordings_folder() / "dev" / f"{name}.flac"


def read_example(name: str) -> bytes:
    """Return the file of an example; raise NotFound, naming all, for an unknown name."""
    if name not in examples():
        raise NotFound(f"There is no example {excerpt(name)}; there are {', '.join(examples())}.")
    return example_path(name).read_bytes()


def decode_recording(data: bytes, sample_rate_hz: int, max_seconds: float) -> np.ndarray:
    """Decode a WAV or FLAC file to a mono waveform, float32 [samples] at `sample_rate_hz`."""
    if data[:4] != FLAC and not (data[:4] == b"RIFF" and data[8:12] == b"WAVE"):
        raise InvalidInput("`recording` must be a WAV or a FLAC file.")
    chunk = find_audio_chunk(io.BytesIO(data))
    if chunk.unread or data.replace(b"fLaC\x80", b"fLaC\x00").count(FIRST_BLOCK) > 1:
        raise InvalidInput(OWN_LENGTH)
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            _check(file, max_seconds)
            mixed, rate_hz = Mixdown(file.channels), file.samplerate
            decoded = _decode_samples(file, mixed)
            there = len(decoded)
            missing = missing_samples(file.frames, there, chunk, file.subtype)
    except soundfile.SoundFileError as error:
        raise InvalidInput("`recording` must be a WAV or a FLAC file that can be read.") from error
    waveform = _shift_levels(decoded)
    if not len(waveform) or not np.isfinite(waveform).all():
        raise InvalidInput("`recording` must hold samples, all of them finite.")
    if missing:
        raise InvalidInput(
            f"`recording` must be whole: its header promises {there + missing:,} samples, it has "
            f"{there:,}."
        )
    if mixed.cancels:
        raise InvalidInput("`recording` must have channels that do not cancel each other.")
    resampled = resample(without_offset(waveform), rate_hz, sample_rate_hz)
    if len(resampled) < LEAST_SAMPLES:
        raise InvalidInput(
            f"`recording` must last at least {LEAST_SAMPLES} samples at {sample_rate_hz:,} per "
            f"second, got {there:,} at {rate_hz:,}."
        )
    return resampled


def _check(file: soundfile.SoundFile, max_seconds: float) -> None:
    if file.frames >= UNKNOWN_SAMPLES:
        raise InvalidInput(OWN_LENGTH)
    if file.subtype not in SUBTYPES:
        raise InvalidInput("`recording` must hold uncompressed samples, or be FLAC.")
    if not LOWEST_HZ <= file.samplerate <= HIGHEST_HZ:
        raise InvalidInput(
            f"`recording` must have from {LOWEST_HZ} to {HIGHEST_HZ} samples per second, got "
            f"{file.samplerate}."
        )
    if file.channels > MAX_CHANNELS:
        raise InvalidInput(
            f"`recording` must have at most {MAX_CHANNELS} channels, got {file.channels}."
        )
    if file.frames > max_seconds * file.samplerate:
        raise TooLarge(f"`recording` must last at most {max_seconds:g} seconds.")


def _decode_samples(file: soundfile.SoundFile, mixed: Mixdown) -> np.ndarray:
    blocks, left = [np.zeros(0, np.float32)], file.frames
    while left > 0:
        block = file.read(min(BLOCK_SAMPLES, left), dtype="float32", always_2d=True)
        if not len(block):
            break
        left -= len(block)
        blocks.append(mixed.add(block))
    return np.concatenate(blocks)


def _shift_levels(waveform: np.ndarray) -> np.ndarray:
    """Map s / 32768, which libsndfile returns for a 16-bit sample s, to (2 s + 1) / 65535."""
    return (waveform * np.float32(65536.0) + np.float32(1.0)) / np.float32(65535.0)
