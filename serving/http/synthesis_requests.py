"""Synthesis requests, checked before anything is synthesised."""

import asyncio
import contextlib
import dataclasses
import logging
import shutil
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import numpy as np
from msgspec import Meta, Struct

from replicator.runs.errors import UserError
from serving.bundles.protocols import Servable
from serving.bundles.signature import PLAIN, Signature
from serving.engine.served_model import ServedModel
from serving.engine.streams import PROCESSORS
from serving.errors import DeadlineExceeded, InvalidInput, NotReady, TooLarge
from serving.http.fields import Name, Seed, excerpt
from speech.parts import SPELT_OUT, spelt_out, spoken_length
from speech.phonemes import MAX_CHARACTERS
from wavenet.data.recorded_level import at_recorded_level, level_gain_db, level_of

LOG = logging.getLogger(__name__)
UNCONDITIONAL_SECONDS = 2.0
WORKERS = 16  # threads that wait for a permit
Temperature = Annotated[float, Meta(ge=0, le=10)]


class SynthesisFields(Struct, kw_only=True):
    """How to speak."""

    seed: Seed | None = None
    row: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    temperature: Temperature | None = None
    speaker: Name | None = None
    seconds: Annotated[float, Meta(gt=0, le=3600)] | None = None


@dataclasses.dataclass(frozen=True)
class SynthesisRequest:
    """A sound: frames float32 [frames, channels] or None, and how to speak them.

    num_samples: of the sound, known before it is made. gain_db: what the recording that the frames
    are of was amplified by; the sound gets the recording's level back.
    """

    frames: np.ndarray | None
    num_samples: int
    seed: int
    row: int
    temperature: float | None
    speaker: str | None
    gain_db: float = 0.0


def signature(served: ServedModel) -> Signature:
    """What the whole sound is made from."""
    return served.signatures[PLAIN]


def is_conditional(served: ServedModel) -> bool:
    """Whether the model needs frames."""
    return "frames" in signature(served).inputs


def speakers(served: ServedModel) -> list[str]:
    """The names of the speakers that can be chosen."""
    return list(served.spec.get("speakers", ())) if "speaker" in signature(served).inputs else []


def max_frames(served: ServedModel) -> int:
    """The most frames of a sound."""
    return int(served.spec["serving"]["limits"]["max_frames"])


def max_seconds(served: ServedModel) -> float:
    """How long a sound may last."""
    return max_frames(served) * served.spec["hop_samples"] / served.spec["sample_rate_hz"]


def synthesis_request(
    served: ServedModel,
    fields: SynthesisFields,
    frames: np.ndarray | None,
    gain_db: float = 0.0,
) -> SynthesisRequest:
    """The sound that the fields ask for, of these frames; InvalidInput, with field and rule.

    gain_db: see `SynthesisRequest`.
    """
    rate_hz, hop = served.spec["sample_rate_hz"], served.spec["hop_samples"]
    wanted = fields.seconds
    if frames is None:
        num_samples = max(1, round((wanted or UNCONDITIONAL_SECONDS) * rate_hz))
        if num_samples > max_frames(served) * hop:
            raise InvalidInput(f"`seconds` must be at most {max_seconds(served):g}.")
    else:
        if len(frames) > max_frames(served):
            raise TooLarge(
                f"A sound must have at most {max_frames(served):,} frames, got {len(frames):,}."
            )
        num_samples = len(frames) * hop
        if wanted is not None:
            num_samples = max(1, min(num_samples, round(wanted * rate_hz)))
    return SynthesisRequest(
        frames,
        num_samples,
        fields.seed or 0,
        fields.row or 0,
        fields.temperature,
        _speaker(served, fields.speaker),
        gain_db,
    )


def _speaker(served: ServedModel, name: str | None) -> str | None:
    known = speakers(served)
    if name is None or name in known:
        return name
    if not known:
        raise InvalidInput("`speaker` must not be given: the model has one voice.")
    raise InvalidInput(f"`speaker` must be one of {', '.join(known)}, got {excerpt(name)}.")


async def synthesize(
    served: ServedModel, synthesis: SynthesisRequest, timeout_seconds: float | None = None
) -> AsyncGenerator[np.ndarray, None]:
    """The sound in chunks float32 [samples], as it is made; see `ServedModel.stream`."""
    made = served.stream(
        synthesis.frames,
        seed=synthesis.seed,
        row=synthesis.row,
        num_samples=synthesis.num_samples,
        speaker=synthesis.speaker,
        temperature=synthesis.temperature,
        timeout_seconds=timeout_seconds,
    )
    async with contextlib.aclosing(made) as chunks:
        async for chunk in chunks:
            yield at_recorded_level(chunk, synthesis.gain_db)


def recording_gain_db(served: ServedModel, waveform: np.ndarray) -> float:
    """What the model's `frames` amplify a recording [samples] by, in dB."""
    spec = served.spec
    return level_gain_db(waveform, spec.get("gain_db", 0.0), level_of(spec))


class WorkerPool:
    """Threads for what comes before a model: decoding, features, phonemes.

    Args:
      seconds: that a piece of work may wait and take.
    """

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._threads = ThreadPoolExecutor(WORKERS, thread_name_prefix="reading")

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What the function returns, called in a thread; DeadlineExceeded if it takes too long."""

        def work() -> Any:
            with PROCESSORS.permit():
                return function(*arguments)

        working = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            async with asyncio.timeout(self._seconds):
                return await working
        except TimeoutError as error:
            raise DeadlineExceeded("The input took too long to read.") from error


def supports_text(served: ServedModel) -> bool:
    """Whether the model can speak a text, here and now."""
    import speech
    from speech.phonemes import PROGRAM

    try:
        speech.shipped().check(served.spec)
    except UserError:
        return False
    return shutil.which(PROGRAM) is not None


def check_length(words: str, most: int = MAX_CHARACTERS) -> None:
    """InvalidInput for a text that would take too long to speak, known before anything is made."""
    length = spoken_length(words)
    if length > most:
        spelt = spelt_out(words)
        why = f", where {excerpt(spelt[0])} and its like count {SPELT_OUT}" if spelt else ""
        raise InvalidInput(f"The text must have at most {most:,} characters, got {length:,}{why}.")


def text_frames(bundle: Servable, words: str, speed: float = 1.0) -> np.ndarray:
    """The frames of a text, float32 [frames, channels].

    Raises:
      InvalidInput: the text cannot be spoken, or the model reads other frames. NotReady: there is
        no voice for text, or no espeak-ng.
    """
    import speech

    check_length(words)
    try:
        speech.shipped()
    except UserError as error:
        LOG.error("no text front end: %s", error)
        raise NotReady("Text cannot be spoken: no voice for it is installed.") from error
    try:
        return speech.text_frames(bundle, words, speed=speed)
    except speech.EspeakError as error:
        raise NotReady(str(error)) from error
    except UserError as error:
        raise InvalidInput(str(error)) from error
