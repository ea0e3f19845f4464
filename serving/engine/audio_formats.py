"""Audio encodings of responses: streamed while the audio is generated, or as a complete file."""

import dataclasses
import io
import struct
from collections.abc import AsyncGenerator, Callable

import numpy as np
import soundfile
import soxr

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


@dataclasses.dataclass(frozen=True)
class StreamFormat:
    """A format of streamed audio: `head`, then chunks, float32 [samples], by `encode`."""

    media_type: str
    head: bytes
    encode: Callable[[np.ndarray], bytes]


def stream_format(name: str, sample_rate_hz: int, num_samples: int | None) -> StreamFormat:
    """Return the format "wav" or "l16" for a sample rate and a length (None if unknown)."""
    if name == "wav":
        return StreamFormat("audio/wav", wav_header(sample_rate_hz, num_samples), little_endian)
    return StreamFormat(f"audio/L16;rate={sample_rate_hz};channels=1", b"", big_endian)


async def encode_stream(
    chunks: AsyncGenerator[np.ndarray, None], form: StreamFormat
) -> AsyncGenerator[bytes, None]:
    """Encode the chunks of a waveform, each [samples]; the first one includes the header."""
    head = form.head
    try:
        async for chunk in chunks:
            yield head + form.encode(chunk)
            head = b""
        if head:
            yield head
    finally:
        await chunks.aclose()


async def resample_stream(
    chunks: AsyncGenerator[np.ndarray, None], from_hz: int, to_hz: int
) -> AsyncGenerator[np.ndarray, None]:
    """Resample a waveform chunk by chunk, with a band-limiting filter."""
    try:
        if from_hz == to_hz:
            async for chunk in chunks:
                yield chunk
            return
        stream = soxr.ResampleStream(from_hz, to_hz, 1, dtype="float32", quality="HQ")
        async for chunk in chunks:
            converted = stream.resample_chunk(np.ascontiguousarray(chunk, np.float32))
            if len(converted):
                yield converted
        yield stream.resample_chunk(np.zeros(0, np.float32), last=True)
    finally:
        await chunks.aclose()


@dataclasses.dataclass(frozen=True)
class FileFormat:
    """A format of complete audio files, with soundfile's names of container and encoding."""

    media_type: str
    container: str
    subtype: str


FILE_FORMATS = {
    "flac": FileFormat("audio/flac", "FLAC", "PCM_16"),
    "mp3": FileFormat("audio/mpeg", "MP3", "MPEG_LAYER_III"),
    "ogg": FileFormat("audio/ogg; codecs=vorbis", "OGG", "VORBIS"),
    "opus": FileFormat("audio/ogg; codecs=opus", "OGG", "OPUS"),
}


def file_bytes(waveform: np.ndarray, sample_rate_hz: int, form: FileFormat) -> bytes:
    """Encode a waveform [samples] as a file; for Opus, resample it to a rate that Opus supports."""
    if form.subtype == "OPUS" and sample_rate_hz not in OPUS_HZ:
        rate_hz = min((rate for rate in OPUS_HZ if rate > sample_rate_hz), default=OPUS_HZ[-1])
        waveform, sample_rate_hz = resample(waveform, sample_rate_hz, rate_hz), rate_hz
    memory = io.BytesIO()
    with soundfile.SoundFile(
        memory, "w", sample_rate_hz, 1, form.subtype, format=form.container
    ) as file:
        for start in range(0, len(waveform), BLOCK_SAMPLES):
            file.write(to_int16(waveform[start : start + BLOCK_SAMPLES]))
    return memory.getvalue()
