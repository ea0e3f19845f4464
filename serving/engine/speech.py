"""Speech of a served model: from frames, and frames of texts, for all protocols."""

import asyncio
import contextlib
import functools
import logging
import math
import shutil
from collections.abc import AsyncGenerator, Callable
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from onepass.bundles.errors import InvalidInput, NotReady, TooLarge
from onepass.bundles.frames import check_convention
from onepass.bundles.signature import PLAIN, Signature
from onepass.bundles.sound_sampling import check_speaker
from onepass.foundation.errors import UserError
from onepass.speech.phonemes import (
    MAX_CHARACTERS,
    SPELT_OUT,
    characters_at,
    spelt_out,
    spoken_length,
)
from serving.engine.fields import Fields, Name, Seed, excerpt
from serving.engine.json_tensors import base64_bytes, json_tensor
from serving.engine.preparation import run_in_turn
from serving.engine.recordings import decode_recording, read_example
from serving.engine.served_model import ServedModel
from wavenet.data.recorded_level import (
    at_recorded_level,
    gain_of,
    is_recorded,
    level_gain_db,
    level_of,
    recorded_frames,
)

LOG = logging.getLogger(__name__)
UNCONDITIONAL_SECONDS = 2.0
Chunks = AsyncGenerator[np.ndarray, None]
Temperature = Annotated[float, Field(ge=0, le=10)]


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
    return int(served.spec["serving"]["limits"]["max_frames"])


def max_seconds(served: ServedModel) -> float:
    """Return the duration of the longest sound that the model can generate, in seconds."""
    return max_frames(served) * served.spec["hop_samples"] / served.spec["sample_rate_hz"]


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
    if refine is None and is_recorded(frames):
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
    return num_samples, _restore_level(chunks, gain_of(frames))


async def _restore_level(sound: Chunks, gain_db: float) -> Chunks:
    async with contextlib.aclosing(sound) as chunks:
        async for chunk in chunks:
            yield at_recorded_level(chunk, gain_db)


def _num_samples(served: ServedModel, seconds: float | None, frames: np.ndarray | None) -> int:
    rate_hz, hop = served.spec["sample_rate_hz"], served.spec["hop_samples"]
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
    from onepass import speech
    from onepass.speech.phonemes import PROGRAM

    try:
        speech.shipped_voice(served.spec).check(served.spec)
    except UserError:
        return False
    return shutil.which(PROGRAM) is not None


def check_length(words: str, most: int = MAX_CHARACTERS, speed: float = 1.0) -> None:
    """Raise InvalidInput for a text with too many characters to speak at a speed."""
    length, longest = spoken_length(words), characters_at(speed, most)
    if length > longest:
        spelt = spelt_out(words)
        why = f", counting {excerpt(spelt[0])} as {SPELT_OUT}" if spelt else ""
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
    from onepass import speech

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


def time_words(
    served: ServedModel, words: str | None, **more: Any
) -> list[tuple[str, float, float]]:
    """Return the words of a text with the seconds at which each begins and ends.

    The arguments are those of `text_frames`, which has checked them.
    """
    from onepass import speech

    times = speech.text_times(served.bundle, words, **more)
    return [(word.word, round(word.start, 3), round(word.end, 3)) for word in times]


async def speak_parts(
    served: ServedModel, fields: SynthesisFields, parts: list[str], speed: float, limit: float
) -> tuple[int | None, Chunks]:
    """Return the length in samples, None for several parts, and the chunks of a text in parts.

    The row of a part is its number; `limit` is the time limit for the frames of each, in seconds.
    """
    if not is_conditional(served):
        raise InvalidInput(f"`model` must accept text; `{served.name}` is unconditional.")

    async def speak_part(row: int) -> tuple[int, Chunks]:
        size = len(parts[row]) / speed
        frames = await run_in_turn(
            limit, text_frames, served, parts[row], speed, in_pieces=True, size=size
        )
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
    """Return the frames of a source, float32 [frames, channels].

    Args:
      source: "frames" (lists), "recording" (a file, or its base64), "example" (its name), "text"
        or "phonemes".
      limit: the time limit in seconds.
      force: whether frames that are unlike the training data are accepted.
      more: further arguments of `text_frames`.
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
        value = await asyncio.to_thread(read_example, value)
    elif isinstance(value, str):
        value = base64_bytes("recording", value)
    return await run_in_turn(limit, recording_frames, served, value)


def recording_frames(served: ServedModel, data: bytes) -> np.ndarray:
    """Return the frames of a recording, a WAV or FLAC file, with the level to restore."""
    spec = served.spec
    waveform = decode_recording(data, spec["sample_rate_hz"], max_seconds(served))
    gain_db = level_gain_db(waveform, spec.get("gain_db", 0.0), level_of(spec))
    try:
        frames = served.speech_bundle.frames(waveform)
    except UserError as error:
        raise InvalidInput(str(error)) from error
    return recorded_frames(frames, gain_db)
