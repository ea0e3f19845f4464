"""The routes that stream speech for recordings, frames or texts, and list example recordings."""

import asyncio
from collections.abc import Coroutine
from typing import Annotated, Any, Literal, TypedDict, get_type_hints

import numpy as np
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from onepass.bundles.errors import InvalidInput, NotFound
from onepass.bundles.frames import check_convention
from onepass.foundation.errors import UserError
from onepass.speech.phonemes import MAX_CHARACTERS
from serving.engine.preparation import run_in_turn
from serving.engine.served_model import ServedModel
from serving.http.audio_formats import encode_stream, stream_format
from serving.http.fields import Name, as_model, excerpt, json_model
from serving.http.json_tensors import base64_bytes, json_tensor
from serving.http.operations import JSON, Bytes, Endpoints, get, post
from serving.http.recordings import ExampleEntry, decode_recording, example_path, examples
from serving.http.request_bodies import body_of, read_body
from serving.http.responses import StreamedResponse, cancel_on_disconnect, json_response
from serving.http.synthesis_requests import (
    SynthesisFields,
    check_length,
    is_conditional,
    max_seconds,
    signature,
    synthesis,
    text_frames,
)
from wavenet.data.recorded_level import level_gain_db, level_of, recorded_frames

SOURCES = ("frames", "recording", "example", "text")
RECORDING_TYPES = ("audio/wav", "audio/x-wav", "audio/wave", "audio/flac", "audio/x-flac")
ROWS = {"type": "array", "items": {"type": "number"}, "minItems": 1}
FRAMES = {"type": "array", "items": ROWS, "minItems": 1}


class SpeakQuery(SynthesisFields, kw_only=True):
    """Options and format of the speech, also as the query of a request with a recording as body."""

    format: Literal["wav", "l16"] | None = None


class SpeakRequest(SpeakQuery, kw_only=True):
    """A request to speak frames, a recording (base64), an example or a text.

    If `force` is true, frames that are unlike the training data are accepted.
    """

    frames: Annotated[Any, Meta(extra_json_schema=FRAMES)] = None
    recording: Annotated[str, Meta(extra_json_schema={"contentEncoding": "base64"})] | None = None
    example: Name | None = None
    text: Annotated[str, Meta(max_length=MAX_CHARACTERS)] | None = None
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
        """Return the frames of the request's only source, float32 [frames, channels].

        Return None for an unconditional model, whose request must have no source.
        """
        given = [name for name in SOURCES if getattr(parsed, name) is not None]
        if not given and not is_conditional(served):
            return None
        if len(given) != 1:
            raise InvalidInput(f"The body must have one of {', '.join(SOURCES)}.")
        source, value = given[0], getattr(parsed, given[0])
        return await self._conditional_frames(served, source, value, bool(parsed.force))

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
        if source == "text":
            check_length(value)
            size = len(value)
            return await run_in_turn(limit, text_frames, served, value, in_pieces=True, size=size)
        if source == "example":
            value = await asyncio.to_thread(_example, value)
        elif isinstance(value, str):
            value = base64_bytes("recording", value)
        return await run_in_turn(limit, _frames_of_recording, served, value)


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
