"""Audio encodings of responses: streamed while the audio is generated, or as a complete file."""

import contextlib
import io
import struct
from collections.abc import AsyncGenerator, Callable

import numpy as np
import soundfile
import soxr

from serving.engine.preparation import run_in_turn
from wavenet.data.audio import resample, to_int16

UNKNOWN_LENGTH, HEAD_BYTES = 0xFFFFFFFF, 44
OPENAI_PCM_HZ = 24_000
OPUS_HZ = (8_000, 12_000, 16_000, 24_000, 48_000)
BLOCK_SAMPLES = 1 << 16


def wav_header(sample_rate_hz: int, num_samples: int | None = None) -> bytes:
    """Return the 44-byte WAV header for mono 16-bit audio; `num_samples` is None if unknown."""
    size = UNKNOWN_LENGTH if num_samples is None else 2 * num_samples
    layout = (16, 1, 1, sample_rate_hz, 2 * sample_rate_hz, 2, 16)  # PCM, mono, 2 bytes per sample
    riff = b"RIFF" + struct.pack("<I", min(size + HEAD_BYTES - 8, UNKNOWN_LENGTH)) + b"WAVE"
    head = riff + b"fmt " + struct.pack("<IHHIIHH", *layout)
    return head + b"data" + struct.pack("<I", size)


def little_endian(waveform: np.ndarray) -> bytes:
    """Encode a waveform as little-endian 16-bit samples, as WAV stores them."""
    return to_int16(waveform).astype("<i2").tobytes()


def big_endian(waveform: np.ndarray) -> bytes:
    """Encode a waveform as big-endian 16-bit samples (RFC 2586, RFC 3551 section 4.5.11)."""
    return to_int16(waveform).astype(">i2").tobytes()


Chunks = AsyncGenerator[np.ndarray, None]
Data = AsyncGenerator[bytes, None]
# The media type of whole files, with soundfile's names of container and encoding.
FILES = {
    "flac": ("audio/flac", "FLAC", "PCM_16"),
    "mp3": ("audio/mpeg", "MP3", "MPEG_LAYER_III"),
    "ogg": ("audio/ogg; codecs=vorbis", "OGG", "VORBIS"),
    "opus": ("audio/ogg; codecs=opus", "OGG", "OPUS"),
}


def encode_sound(
    name: str, sound: Chunks, sample_rate_hz: int, num_samples: int | None, limit: float
) -> tuple[str, Data]:
    """Return the media type and the bytes of a sound, whose chunks are float32 [samples].

    "wav", "l16" and "pcm" (OpenAI's, at OPENAI_PCM_HZ) are encoded chunk by chunk, the formats in
    FILES as a whole.

    Args:
      num_samples: the length that a WAV's header has; None if it is unknown.
      limit: the time limit for encoding a file, in seconds.
    """
    if name in FILES:
        return FILES[name][0], _encode_whole(name, sound, sample_rate_hz, limit)
    if name == "wav":
        header = wav_header(sample_rate_hz, num_samples)
        return "audio/wav", _encode_chunks(sound, little_endian, header)
    if name == "l16":
        media_type = f"audio/L16;rate={sample_rate_hz};channels=1"
        return media_type, _encode_chunks(sound, big_endian)
    resampled = _resample(sound, sample_rate_hz, OPENAI_PCM_HZ)
    return f"audio/pcm;rate={OPENAI_PCM_HZ};channels=1", _encode_chunks(resampled, little_endian)


async def _encode_chunks(
    sound: Chunks, encode: Callable[[np.ndarray], bytes], head: bytes = b""
) -> Data:
    async with contextlib.aclosing(sound):
        async for chunk in sound:
            yield head + encode(chunk)
            head = b""
        if head:
            yield head


async def _encode_whole(name: str, sound: Chunks, rate_hz: int, limit: float) -> Data:
    async with contextlib.aclosing(sound):
        chunks = [chunk async for chunk in sound]
    yield await run_in_turn(limit, _file_bytes, name, np.concatenate(chunks), rate_hz)


async def _resample(sound: Chunks, from_hz: int, to_hz: int) -> Chunks:
    """Resample a waveform chunk by chunk, with a band-limiting filter."""
    async with contextlib.aclosing(sound):
        if from_hz == to_hz:
            async for chunk in sound:
                yield chunk
            return
        stream = soxr.ResampleStream(from_hz, to_hz, 1, dtype="float32", quality="HQ")
        async for chunk in sound:
            converted = stream.resample_chunk(np.ascontiguousarray(chunk, np.float32))
            if len(converted):
                yield converted
        yield stream.resample_chunk(np.zeros(0, np.float32), last=True)


def _file_bytes(name: str, waveform: np.ndarray, rate_hz: int) -> bytes:
    """Encode a waveform [samples] as a file; for Opus, resample it to a rate that Opus supports."""
    _, container, subtype = FILES[name]
    if name == "opus" and rate_hz not in OPUS_HZ:
        opus_hz = min((rate for rate in OPUS_HZ if rate > rate_hz), default=OPUS_HZ[-1])
        waveform, rate_hz = resample(waveform, rate_hz, opus_hz), opus_hz
    memory = io.BytesIO()
    with soundfile.SoundFile(memory, "w", rate_hz, 1, subtype, format=container) as file:
        for start in range(0, len(waveform), BLOCK_SAMPLES):
            file.write(to_int16(waveform[start : start + BLOCK_SAMPLES]))
    return memory.getvalue()
