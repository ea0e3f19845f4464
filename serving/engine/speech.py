"""Speech of a served model: from frames, recordings and texts, to audio in any format."""

import asyncio
import contextlib
import csv
import functools
import io
import logging
import math
import shutil
import struct
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import soundfile
import soxr
from pydantic import Field

from onepass import speech
from onepass.bundles.errors import InvalidInput, NotFound, NotReady, TooLarge
from onepass.bundles.sampling import check_convention, check_speaker
from onepass.bundles.signature import PLAIN, Signature
from onepass.foundation.rules import UserError
from onepass.speech import phonemes
from serving.engine.clients import run_in_turn
from serving.engine.fields import Fields, Name, Seed, base64_bytes, excerpt, json_tensor
from serving.engine.served_model import ServedModel
from wavenet.data import audio
from wavenet.data.audio import Mixdown, resample, to_int16, without_offset
from wavenet.data.decoding import UNKNOWN_SAMPLES, find_audio_chunk, missing_samples
from wavenet.shipped import recordings_folder

UNKNOWN_LENGTH, HEAD_BYTES = 0xFFFFFFFF, 44
OPENAI_PCM_HZ = 24_000
OPUS_HZ = (8_000, 12_000, 16_000, 24_000, 48_000)
BLOCK_SAMPLES = 1 << 16
Chunks = AsyncGenerator[np.ndarray, None]
Data = AsyncGenerator[bytes, None]
# The media type of whole files, with soundfile's names of container and encoding.
FILES = {
    "flac": ("audio/flac", "FLAC", "PCM_16"),
    "mp3": ("audio/mpeg", "MP3", "MPEG_LAYER_III"),
    "ogg": ("audio/ogg; codecs=vorbis", "OGG", "VORBIS"),
    "opus": ("audio/ogg; codecs=opus", "OGG", "OPUS"),
}
SUBTYPES = ("PCM_S8", "PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW")
LOWEST_HZ, HIGHEST_HZ = 4_000, 192_000
MAX_CHANNELS = 8
LEAST_SAMPLES = 2  # at the model's sample rate; mel frames reflect a sound at its ends
FLAC = b"fLaC"
OWN_LENGTH = "`recording` must be one sound with its own length in its header: it holds more."
FIRST_BLOCK = b"fLaC\x00\x00\x00\x22"  # the beginning of a stream, but for one bit
LOG = logging.getLogger(__name__)
UNCONDITIONAL_SECONDS = 2.0
Temperature = Annotated[float, Field(ge=0, le=10)]


def wav_header(sample_rate_hz: int, num_samples: int | None = None) -> bytes:
    """Return the 44-byte WAV header for mono 16-bit audio; `num_samples` is None if unknown."""
    size = UNKNOWN_LENGTH if num_samples is None else 2 * num_samples
    riff = b"RIFF" + struct.pack("<I", min(size + HEAD_BYTES - 8, UNKNOWN_LENGTH)) + b"WAVE"
    # PCM, mono, 2 bytes per sample.
    form = struct.pack("<IHHIIHH", 16, 1, 1, sample_rate_hz, 2 * sample_rate_hz, 2, 16)
    return riff + b"fmt " + form + b"data" + struct.pack("<I", size)


def encode_sound(
    name: str, sound: Chunks, sample_rate_hz: int, num_samples: int | None, limit: float
) -> tuple[str, Data]:
    """Return the media type and the bytes of a sound, whose chunks are float32 [samples].

    "wav", "l16" and "pcm" (OpenAI's, at OPENAI_PCM_HZ) are encoded chunk by chunk, the formats in
    FILES as a whole, within `limit` seconds. `num_samples`, None if unknown, is for a WAV's header.
    """
    if name in FILES:
        return FILES[name][0], _encode_whole(name, sound, sample_rate_hz, limit)
    if name == "wav":
        header = wav_header(sample_rate_hz, num_samples)
        return "audio/wav", _encode_chunks(sound, "<i2", header)
    if name == "l16":  # big-endian: RFC 2586, RFC 3551 section 4.5.11
        media_type = f"audio/L16;rate={sample_rate_hz};channels=1"
        return media_type, _encode_chunks(sound, ">i2")
    resampled = _resample(sound, sample_rate_hz, OPENAI_PCM_HZ)
    return f"audio/pcm;rate={OPENAI_PCM_HZ};channels=1", _encode_chunks(resampled, "<i2")


async def _encode_chunks(sound: Chunks, dtype: str, head: bytes = b"") -> Data:
    async with contextlib.aclosing(sound):
        async for chunk in sound:
            yield head + to_int16(chunk).astype(dtype).tobytes()
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
    _, container, subtype = FILES[name]
    if name == "opus" and rate_hz not in OPUS_HZ:
        opus_hz = min((rate for rate in OPUS_HZ if rate > rate_hz), default=OPUS_HZ[-1])
        waveform, rate_hz = resample(waveform, rate_hz, opus_hz), opus_hz
    memory = io.BytesIO()
    with soundfile.SoundFile(memory, "w", rate_hz, 1, subtype, format=container) as file:
        for start in range(0, len(waveform), BLOCK_SAMPLES):
            file.write(to_int16(waveform[start : start + BLOCK_SAMPLES]))
    return memory.getvalue()


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
    # From s / 32768, which libsndfile returns for a 16-bit sample s, to (2 s + 1) / 65535.
    waveform = (decoded * np.float32(65536.0) + np.float32(1.0)) / np.float32(65535.0)
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
    if not LOWEST_HZ <= (rate_hz := file.samplerate) <= HIGHEST_HZ:
        rule = f"from {LOWEST_HZ} to {HIGHEST_HZ} samples per second"
        raise InvalidInput(f"`recording` must have {rule}, got {rate_hz}.")
    if (count := file.channels) > MAX_CHANNELS:
        raise InvalidInput(f"`recording` must have at most {MAX_CHANNELS} channels, got {count}.")
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


class SynthesisFields(Fields):
    """Options for the synthesis of speech."""

    seed: Seed | None = None
    row: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    temperature: Temperature | None = None
    speaker: Name | None = None
    seconds: Annotated[float, Field(gt=0, le=3600)] | None = None
    refine: Annotated[int, Field(ge=0, le=8)] | None = None


def signature(served: ServedModel) -> Signature:
    """Return the signature `serving_default`, which generates whole sounds."""
    return served.signatures[PLAIN]


def is_conditional(served: ServedModel) -> bool:
    """Return whether the model generates from frames."""
    return "frames" in signature(served).inputs


def speakers(served: ServedModel) -> list[str]:
    """Return the names of the model's speakers; [] if it has no input for a speaker."""
    return list(served.spec.get("speakers", ())) if "speaker" in signature(served).inputs else []


def max_frames(served: ServedModel) -> int:
    """Return the number of frames of the longest sound that the model can generate."""
    return int(served.spec["serving"]["buckets"][-1])


def max_seconds(served: ServedModel) -> float:
    """Return the duration of the longest sound that the model can generate, in seconds."""
    return max_frames(served) * served.spec.get("hop_samples", 1) / served.spec["sample_rate_hz"]


def synthesis(
    served: ServedModel,
    fields: SynthesisFields,
    frames: np.ndarray | None,
    timeout_seconds: float | None = None,
) -> tuple[int, Chunks]:
    """Return the length of a sound in samples, and its chunks, float32 [samples].

    The chunks are computed as they are read, which may raise the errors of `ServedModel.stream`.
    For `RecordedFrames`, the sound has the level of their recording.
    """
    num_samples = _num_samples(served, fields.seconds, frames)
    check_speaker(speakers(served), fields.speaker)
    refine = fields.refine
    if refine is None and audio.is_recorded(frames):
        refine = served.spec.get("refine")
    chunks = served.stream(
        None if frames is None else np.asarray(frames),  # without the gain, which is applied here
        length=num_samples,
        timeout_seconds=timeout_seconds,
        seed=fields.seed or 0,
        row=fields.row or 0,
        temperature=fields.temperature,
        speaker=fields.speaker,
        **({} if refine is None else {"refine": refine}),
    )
    return num_samples, _restore_level(chunks, audio.gain_of(frames))


async def _restore_level(sound: Chunks, gain_db: float) -> Chunks:
    async with contextlib.aclosing(sound) as chunks:
        async for chunk in chunks:
            yield audio.at_recorded_level(chunk, gain_db)


def _num_samples(served: ServedModel, seconds: float | None, frames: np.ndarray | None) -> int:
    rate_hz, hop = served.spec["sample_rate_hz"], served.spec.get("hop_samples", 1)
    if frames is None:
        num_samples = max(1, round((seconds or UNCONDITIONAL_SECONDS) * rate_hz))
        if num_samples > max_frames(served) * hop:
            raise InvalidInput(f"`seconds` must be at most {max_seconds(served):g}.")
        return num_samples
    if len(frames) > max_frames(served):
        raise TooLarge(
            f"A sound must have at most {max_frames(served):,} frames, got {len(frames):,}."
        )
    wanted = math.inf if seconds is None else max(1, round(seconds * rate_hz))
    return int(min(len(frames) * hop, wanted))


def supports_text(served: ServedModel) -> bool:
    """Return whether a text front end for the model and espeak-ng are installed."""
    try:
        speech.shipped_voice(served.spec).check(served.spec)
    except UserError:
        return False
    return shutil.which(phonemes.PROGRAM) is not None


def check_length(words: str, most: int = phonemes.MAX_CHARACTERS, speed: float = 1.0) -> None:
    """Raise InvalidInput for a text with too many characters to speak at a speed."""
    length, longest = phonemes.spoken_length(words), phonemes.characters_at(speed, most)
    if length > longest:
        spelt = phonemes.spelt_out(words)
        why = f", counting {excerpt(spelt[0])} as {phonemes.SPELT_OUT}" if spelt else ""
        at = f" at speed {speed:g}" if longest < most else ""
        raise InvalidInput(
            f"The text must have at most {longest:,} characters{at}, got {length:,}{why}."
        )


def text_frames(
    served: ServedModel,
    words: str | None,
    speed: float = 1.0,
    *,
    pause: Callable[[], None],
    **more: Any,
) -> np.ndarray:
    """Return the frames of a text, float32 [frames, channels].

    `speed` is relative to the recordings; `pause` is called between pieces of the work, and stops
    it by raising; `more` are further arguments of `speech.text_frames`.
    """
    if words is not None:
        check_length(words, speed=speed)
    try:
        speech.shipped_voice()
    except UserError as error:
        LOG.error("no text front end: %s", error)
        raise NotReady("Text cannot be spoken: no text front end is installed.") from error
    most = max_frames(served)
    try:
        return speech.text_frames(
            served.bundle, words, speed=speed, max_frames=most, pause=pause, note=None, **more
        )
    except speech.EspeakError as error:
        raise NotReady(str(error)) from error
    except speech.TooLongError as error:
        raise TooLarge(str(error)) from error
    except UserError as error:
        raise InvalidInput(str(error)) from error


async def speak_parts(
    served: ServedModel, fields: SynthesisFields, parts: list[str], speed: float, limit: float
) -> tuple[int | None, Chunks]:
    """Return the samples (None for several parts) and the chunks of a text in parts."""
    if not is_conditional(served):
        raise InvalidInput(f"`model` must accept text; `{served.name}` is unconditional.")

    async def speak_part(row: int) -> tuple[int, Chunks]:
        work, size = functools.partial(text_frames, served, parts[row], speed), len(parts[row])
        frames = await run_in_turn(limit, work, in_pieces=True, size=size / speed)
        return synthesis(served, fields.model_copy(update={"row": row}), frames)

    async def joined() -> Chunks:
        chunks = first
        for row in range(len(parts)):
            if row:
                _, chunks = await speak_part(row)
            async with contextlib.aclosing(chunks):
                async for chunk in chunks:
                    yield chunk

    num_samples, first = await speak_part(0)
    return num_samples if len(parts) == 1 else None, joined()


async def frames_of(
    served: ServedModel, source: str, value: Any, limit: float, *, force: bool = False, **more: Any
) -> np.ndarray:
    """Return the frames of a source, float32 [frames, channels], within `limit` seconds.

    `source` is "frames" (lists), "recording" (a file, or its base64), "example" (its name), "text"
    or "phonemes". With `force`, frames that are unlike the training data are accepted; `more` are
    further arguments of `text_frames`.
    """
    if not is_conditional(served):
        raise InvalidInput(f"`{source}` must not be given: the model is unconditional.")
    if source in ("text", "phonemes"):
        words = value if source == "text" else None
        if words is None:
            more["phonemes"] = value
        else:
            check_length(words)
        work = functools.partial(text_frames, served, words, **more)
        return await run_in_turn(limit, work, in_pieces=True, size=len(value))
    if source == "frames":
        info = signature(served).inputs["frames"]
        frames = (await run_in_turn(limit, json_tensor, "frames", [value], info))[0]
        if not force:
            check_convention(served.spec, frames)
        return frames
    if source == "example":
        if value not in (known := await asyncio.to_thread(examples)):
            raise NotFound(f"There is no example {excerpt(value)}; there are {', '.join(known)}.")
        value = await asyncio.to_thread(example_path(value).read_bytes)
    elif isinstance(value, str):
        value = base64_bytes("recording", value)
    return await run_in_turn(limit, recording_frames, served, value)


def recording_frames(served: ServedModel, data: bytes) -> np.ndarray:
    """Return the frames of a recording, a WAV or FLAC file, with the level to restore."""
    spec = served.spec
    waveform = decode_recording(data, spec["sample_rate_hz"], max_seconds(served))
    gain_db = audio.level_gain_db(waveform, spec.get("gain_db", 0.0), audio.level_of(spec))
    try:
        frames = served.speech_bundle.frames(waveform)
    except UserError as error:
        raise InvalidInput(str(error)) from error
    return audio.recorded_frames(frames, gain_db)
