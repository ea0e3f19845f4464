"""Sound as the bytes of an answer: streamed as it is made, or as a whole file."""

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
WRITTEN_AT_ONCE = 1 << 16  # samples


def wav_header(sample_rate_hz: int, num_samples: int | None = None) -> bytes:
    """The 44 bytes before mono 16-bit samples of a WAV; None: their number is not known yet."""
    size = UNKNOWN_LENGTH if num_samples is None else 2 * num_samples
    layout = (16, 1, 1, sample_rate_hz, 2 * sample_rate_hz, 2, 16)  # PCM, mono, 2 bytes a sample
    riff = b"RIFF" + struct.pack("<I", min(size + HEAD_BYTES - 8, UNKNOWN_LENGTH)) + b"WAVE"
    head = riff + b"fmt " + struct.pack("<IHHIIHH", *layout)
    return head + b"data" + struct.pack("<I", size)


def little_endian(waveform: np.ndarray) -> bytes:
    """16-bit samples, as WAV has them."""
    return to_int16(waveform).astype("<i2").tobytes()


def big_endian(waveform: np.ndarray) -> bytes:
    """16-bit samples in the order of the network (RFC 2586, RFC 3551 section 4.5.11)."""
    return to_int16(waveform).astype(">i2").tobytes()


@dataclasses.dataclass(frozen=True)
class StreamFormat:
    """How sound is streamed: what comes before it and what becomes of a piece."""

    media_type: str
    head: bytes
    encode: Callable[[np.ndarray], bytes]


def stream_format(name: str, sample_rate_hz: int, num_samples: int | None) -> StreamFormat:
    """The format "wav" or "l16", at a rate, of a sound of that length; None: it is not known."""
    if name == "wav":
        return StreamFormat("audio/wav", wav_header(sample_rate_hz, num_samples), little_endian)
    return StreamFormat(f"audio/L16;rate={sample_rate_hz};channels=1", b"", big_endian)


async def streamed(
    chunks: AsyncGenerator[np.ndarray, None], form: StreamFormat
) -> AsyncGenerator[bytes, None]:
    """The bytes of sound [samples] in chunks; the head comes with the first of them."""
    head = form.head
    try:
        async for chunk in chunks:
            yield head + form.encode(chunk)
            head = b""
        if head:
            yield head
    finally:
        await chunks.aclose()


async def resampled(
    chunks: AsyncGenerator[np.ndarray, None], from_hz: int, to_hz: int
) -> AsyncGenerator[np.ndarray, None]:
    """The same sound at another rate, band-limited, chunk by chunk."""
    try:
        if from_hz == to_hz:
            async for chunk in chunks:
                yield chunk
            return
        stream = soxr.ResampleStream(from_hz, to_hz, 1, dtype="float32", quality="HQ")
        async for chunk in chunks:
            made = stream.resample_chunk(np.ascontiguousarray(chunk, np.float32))
            if len(made):
                yield made
        yield stream.resample_chunk(np.zeros(0, np.float32), last=True)
    finally:
        await chunks.aclose()


@dataclasses.dataclass(frozen=True)
class FileFormat:
    """A file that is written when the sound is whole, in soundfile's words."""

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
    """The file of a sound [samples]; Opus knows few rates, and has the next one above."""
    if form.subtype == "OPUS" and sample_rate_hz not in OPUS_HZ:
        above = [rate for rate in OPUS_HZ if rate > sample_rate_hz] or [OPUS_HZ[-1]]
        waveform = resample(waveform, sample_rate_hz, above[0])
        sample_rate_hz = above[0]
    memory = io.BytesIO()
    with soundfile.SoundFile(
        memory, "w", sample_rate_hz, 1, form.subtype, format=form.container
    ) as file:
        for start in range(0, len(waveform), WRITTEN_AT_ONCE):
            file.write(to_int16(waveform[start : start + WRITTEN_AT_ONCE]))
    return memory.getvalue()
