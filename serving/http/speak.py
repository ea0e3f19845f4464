"""The routes that stream speech for recordings, frames or texts, and checks of their requests."""

import asyncio
import contextlib
import logging
import math
import shutil
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Annotated, Any, Literal, TypedDict, get_type_hints

import numpy as np
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from onepass.bundles.errors import InvalidInput, NotFound, NotReady, TooLarge
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
from onepass.speech.ssml import note_on_markup
from serving.engine.preparation import run_in_turn
from serving.engine.served_model import ServedModel
from serving.http.audio_formats import encode_stream, stream_format
from serving.http.operations import JSON, Bytes, Endpoints, get, post
from serving.http.recordings import ExampleEntry, decode_recording, example_path, examples
from serving.http.request_bodies import (
    Name,
    Seed,
    as_model,
    base64_bytes,
    body_of,
    excerpt,
    json_model,
    json_tensor,
    read_body,
)
from serving.http.responses import StreamedResponse, cancel_on_disconnect, json_response
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
Temperature = Annotated[float, Meta(ge=0, le=10)]


class SynthesisFields(Struct, kw_only=True):
    """Options for the synthesis of speech."""

    seed: Seed = None
    row: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    temperature: Temperature | None = None
    speaker: Name | None = None
    seconds: Annotated[float, Meta(gt=0, le=3600)] | None = None
    refine: Annotated[int, Meta(ge=0, le=8)] | None = None


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
) -> tuple[int, AsyncGenerator[np.ndarray, None]]:
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


async def _restore_level(
    sound: AsyncGenerator[np.ndarray, None], gain_db: float
) -> AsyncGenerator[np.ndarray, None]:
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


SOURCES = ("frames", "recording", "example", "text", "phonemes")
MAX_PRONUNCIATIONS = 1000
Word = Annotated[str, Meta(min_length=1, max_length=100)]
Pronunciation = Annotated[str, Meta(min_length=1, max_length=200)]
Pronunciations = Annotated[dict[Word, Pronunciation], Meta(max_length=MAX_PRONUNCIATIONS)]
RECORDING_TYPES = ("audio/wav", "audio/x-wav", "audio/wave", "audio/flac", "audio/x-flac")
ROWS = {"type": "array", "items": {"type": "number"}, "minItems": 1}
FRAMES = {"type": "array", "items": ROWS, "minItems": 1}


class SpeakQuery(SynthesisFields, kw_only=True):
    """Options and format of the speech, also as the query of a request with a recording as body."""

    format: Literal["wav", "l16"] | None = None


class SpeakRequest(SpeakQuery, kw_only=True):
    """A request to speak frames, a recording (base64), an example, a text or phonemes (IPA).

    `pronunciations` has the IPA of words of the text.
    If `force` is true, frames that are unlike the training data are accepted.
    """

    frames: Annotated[Any, Meta(extra_json_schema=FRAMES)] = None
    recording: Annotated[str, Meta(extra_json_schema={"contentEncoding": "base64"})] | None = None
    example: Name | None = None
    text: Annotated[str, Meta(max_length=MAX_CHARACTERS)] | None = None
    phonemes: Annotated[str, Meta(max_length=MAX_CHARACTERS)] | None = None
    pronunciations: Pronunciations | None = None
    force: bool | None = None


class Examples(TypedDict):
    """The response with the server's example recordings."""

    examples: list[ExampleEntry]


class SpeakRoute(Endpoints):
    """The endpoints for speech."""

    @post(
        "/v1/models/{name}:speak",
        {"audio/wav": Bytes, "audio/L16": Bytes},
        {JSON: SpeakRequest, **dict.fromkeys(RECORDING_TYPES, Bytes)},
        query=get_type_hints(SpeakQuery, include_extras=True),
    )
    async def speak(self, request: Request) -> StreamedResponse:
        """Stream speech for a recording, frames or a text, or from an unconditional model."""
        served = self._model_at(request, "sound")
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind in RECORDING_TYPES:
            fields: SpeakQuery = as_model(dict(request.query_params), SpeakQuery, strict=False)
            work: Coroutine[Any, Any, Any] = self._conditional_frames(
                served, "recording", await body_of(request)
            )
        else:
            fields = parsed = await read_body(request, json_model, SpeakRequest)
            work = self._frames(served, parsed)
        frames = await cancel_on_disconnect(request.receive, work)
        num_samples, chunks = synthesis(served, fields, frames)
        form = stream_format(fields.format or "wav", served.spec["sample_rate_hz"], num_samples)
        headers = {"x-num-samples": str(num_samples)}
        if note := _note_on(fields):
            headers["x-note"] = note
        stall_seconds = self._settings.timeout_seconds
        return StreamedResponse(
            encode_stream(chunks, form), form.media_type, stall_seconds, headers
        )

    @get("/v1/models/{name}/examples", Examples)
    async def list_examples(self, request: Request) -> Response:
        """Return the example recordings; [] unless the model generates sound from frames."""
        served = self._model_at(request)
        usable = served.kind == "sound" and is_conditional(served)
        return json_response(Examples(examples=list(examples().values()) if usable else []))

    async def _frames(self, served: ServedModel, parsed: SpeakRequest) -> np.ndarray | None:
        """Return the frames of the request's only source; None for an unconditional model."""
        given = [name for name in SOURCES if getattr(parsed, name) is not None]
        if not given and not is_conditional(served):
            return None
        if len(given) != 1:
            raise InvalidInput(f"The body must have one of {', '.join(SOURCES)}.")
        source, value = given[0], getattr(parsed, given[0])
        if parsed.pronunciations is not None and source != "text":
            raise InvalidInput("`pronunciations` must not be given without `text`.")
        if source in ("text", "phonemes") and is_conditional(served):
            return await self._spoken_frames(served, parsed)
        return await self._conditional_frames(served, source, value, bool(parsed.force))

    async def _spoken_frames(self, served: ServedModel, parsed: SpeakRequest) -> np.ndarray:
        """Return the frames of a text or of phonemes, float32 [frames, channels]."""
        if parsed.text is not None:
            check_length(parsed.text)
        size = len(parsed.text or parsed.phonemes or "")
        limit = self._settings.timeout_seconds
        return await run_in_turn(limit, _frames_of_words, served, parsed, in_pieces=True, size=size)

    async def _conditional_frames(
        self, served: ServedModel, source: str, value: Any, force: bool = False
    ) -> np.ndarray:
        limit = self._settings.timeout_seconds
        if not is_conditional(served):
            raise InvalidInput(f"`{source}` must not be given: the model is unconditional.")
        if source == "frames":
            info = signature(served).inputs["frames"]
            frames = (await run_in_turn(limit, json_tensor, "frames", [value], info))[0]
            if not force:
                check_convention(served.spec, frames)
            return frames
        if source == "example":
            value = await asyncio.to_thread(_example, value)
        elif isinstance(value, str):
            value = base64_bytes("recording", value)
        return await run_in_turn(limit, _frames_of_recording, served, value)


def _note_on(fields: SpeakQuery) -> str | None:
    """Return a note on the tags of a text that are not obeyed, in the letters of a header."""
    text = getattr(fields, "text", None)
    note = None if text is None else note_on_markup(text)
    return note and note.encode("ascii", "backslashreplace").decode().replace("\n", " ")


def _frames_of_words(
    served: ServedModel, parsed: SpeakRequest, *, pause: Callable[[], None]
) -> np.ndarray:
    more: dict[str, Any] = {"phonemes": parsed.phonemes, "pronunciations": parsed.pronunciations}
    more = {name: value for name, value in more.items() if value is not None}
    return text_frames(served, parsed.text, pause=pause, **more)


def _frames_of_recording(served: ServedModel, data: bytes) -> np.ndarray:
    spec = served.spec
    waveform = decode_recording(data, spec["sample_rate_hz"], max_seconds(served))
    gain_db = level_gain_db(waveform, spec.get("gain_db", 0.0), level_of(spec))
    try:
        frames = served.speech_bundle.frames(waveform)
    except UserError as error:
        raise InvalidInput(str(error)) from error
    return recorded_frames(frames, gain_db)


def _example(name: str) -> bytes:
    if name not in examples():
        raise NotFound(f"There is no example {excerpt(name)}; there are {', '.join(examples())}.")
    return example_path(name).read_bytes()
