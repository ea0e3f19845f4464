"""The route that speaks recordings, frames or texts, streaming the audio."""

import asyncio
from collections.abc import Coroutine
from typing import Annotated, Any, Literal, TypedDict, get_type_hints

import numpy as np
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from serving.bundles.frames import check_convention
from serving.engine.registry import ModelRegistry
from serving.engine.served_model import ServedModel
from serving.errors import InvalidInput, NotFound
from serving.http.audio_formats import stream_format, streamed
from serving.http.fields import Name, as_model, excerpt, json_model
from serving.http.json_tensors import base64_bytes, json_tensor
from serving.http.operations import JSON, Bytes, Endpoints, get, post
from serving.http.recordings import examples
from serving.http.request_bodies import body_of, read_body
from serving.http.responses import StreamedResponse, cancel_on_disconnect, json_response
from serving.http.synthesis_requests import (
    SynthesisFields,
    WorkerPool,
    is_conditional,
    max_seconds,
    signature,
    synthesis,
    text_frames,
)
from serving.settings import Settings
from speech.phonemes import MAX_CHARACTERS
from wavenet.data.recorded_level import level_gain_db, level_of, recorded_frames

SOURCES = ("frames", "recording", "example", "text")
RECORDING_TYPES = ("audio/wav", "audio/x-wav", "audio/wave", "audio/flac", "audio/x-flac")
ROWS = {"type": "array", "items": {"type": "number"}, "minItems": 1}
FRAMES = {"type": "array", "items": ROWS, "minItems": 1}


class SpeakQuery(SynthesisFields, kw_only=True):
    """Options and format of the speech; a query where the body is a recording."""

    format: Literal["wav", "l16"] | None = None


class SpeakRequest(SpeakQuery, kw_only=True):
    """One of frames, a recording (base64), an example and a text, and how to speak it.

    force: accept frames that do not look like the training data.
    """

    frames: Annotated[Any, Meta(extra_json_schema=FRAMES)] = None
    recording: Annotated[str, Meta(extra_json_schema={"contentEncoding": "base64"})] | None = None
    example: Name | None = None
    text: Annotated[str, Meta(max_length=MAX_CHARACTERS)] | None = None
    force: bool | None = None


class ExampleEntry(TypedDict):
    """A recording that the server offers."""

    name: str
    text: str
    seconds: float


class Examples(TypedDict):
    """The recordings that the server offers."""

    examples: list[ExampleEntry]


class SpeakRoute(Endpoints):
    """The endpoints for speech."""

    def __init__(self, registry: ModelRegistry, settings: Settings):
        super().__init__(registry, settings)
        self._workers = WorkerPool(settings.timeout_seconds)

    @post(
        "/v1/models/{name}:speak",
        {"audio/wav": Bytes, "audio/L16": Bytes},
        {JSON: SpeakRequest, **dict.fromkeys(RECORDING_TYPES, Bytes)},
        query=get_type_hints(SpeakQuery, include_extras=True),
    )
    async def speak(self, request: Request) -> StreamedResponse:
        """Stream the speech of a recording, of frames or of a text."""
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
        frames, gain_db = await cancel_on_disconnect(request.receive, work)
        num_samples, chunks = synthesis(served, fields, frames, gain_db)
        form = stream_format(fields.format or "wav", served.spec["sample_rate_hz"], num_samples)
        headers = {"x-num-samples": str(num_samples)}
        stall_seconds = self._settings.timeout_seconds
        return StreamedResponse(streamed(chunks, form), form.media_type, stall_seconds, headers)

    @get("/v1/models/{name}/examples", Examples)
    async def list_examples(self, request: Request) -> Response:
        """Return the example recordings; none for an unconditional model."""
        served = self._model_at(request)
        usable = served.kind == "sound" and is_conditional(served)
        entries: list[ExampleEntry] = [
            {"name": example.name, "text": example.text, "seconds": example.seconds}
            for example in (examples().values() if usable else ())
        ]
        return json_response(Examples(examples=entries))

    async def _frames(
        self, served: ServedModel, parsed: SpeakRequest
    ) -> tuple[np.ndarray | None, float]:
        """Return the frames of the only source, float32 [frames, channels], and its gain in dB."""
        given = [name for name in SOURCES if getattr(parsed, name) is not None]
        if not given and not is_conditional(served):
            return None, 0.0
        if len(given) != 1:
            raise InvalidInput(f"The body must have one of {', '.join(SOURCES)}.")
        source, value = given[0], getattr(parsed, given[0])
        return await self._conditional_frames(served, source, value, bool(parsed.force))

    async def _conditional_frames(
        self, served: ServedModel, source: str, value: Any, force: bool = False
    ) -> tuple[np.ndarray, float]:
        """Return the frames of a source, and the gain applied to its recording in dB, else 0."""
        if not is_conditional(served):
            raise InvalidInput(f"`{source}` must not be given: the model is unconditional.")
        if source == "frames":
            info = signature(served).inputs["frames"]
            frames = (await self._workers.run(json_tensor, "frames", [value], info))[0]
            if not force:
                check_convention(served.spec, frames)
            return frames, 0.0
        if source == "text":
            return await self._workers.run(text_frames, served.bundle, value), 0.0
        if source == "example":
            value = await asyncio.to_thread(_example, value)
        elif isinstance(value, str):
            value = base64_bytes("recording", value)
        return await self._workers.run(frames_from_recording, served, value)


def frames_from_recording(served: ServedModel, data: bytes) -> tuple[np.ndarray, float]:
    """Return the frames of a recording, float32 [frames, channels], and the gain applied in dB."""
    from serving.http.recordings import decode_recording

    waveform = decode_recording(data, served.spec["sample_rate_hz"], max_seconds(served))
    # The level is brought back by the request, not by the bundle.
    frames = recorded_frames(served.speech_bundle.frames(waveform), 0.0)
    spec = served.spec
    return frames, level_gain_db(waveform, spec.get("gain_db", 0.0), level_of(spec))


def _example(name: str) -> bytes:
    example = examples().get(name)
    if example is None:
        raise NotFound(f"There is no example {excerpt(name)}; there are {', '.join(examples())}.")
    return example.path.read_bytes()
