"""Our own route of sound: recordings, frames or text in, sound out as it is made."""

import asyncio
from typing import Any

import numpy as np
import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serving.engine.registry import ModelRegistry
from serving.engine.served_model import ServedModel
from serving.errors import InvalidInput, NotFound
from serving.http.audio_formats import stream_format, streamed
from serving.http.disconnects import cancel_on_disconnect
from serving.http.example_recordings import examples
from serving.http.fields import Fields, choice, excerpt, invalid_field, json_object, text
from serving.http.json_responses import json_response
from serving.http.json_tensors import base64_bytes, json_tensor
from serving.http.model_lookup import MAX_NAME_CHARACTERS, model_from_path, require_kind
from serving.http.request_bodies import body_of, read_with
from serving.http.streamed_responses import StreamedResponse
from serving.http.synthesis_requests import (
    SynthesisRequest,
    WorkerPool,
    is_conditional,
    max_seconds,
    signature,
    synthesis_request,
    synthesize,
    text_frames,
)
from serving.settings import Settings
from speech.phonemes import MAX_CHARACTERS

FORMATS = ("wav", "l16")
SOURCES = ("frames", "recording", "example", "text")
NUMBERS = ("seed", "row", "temperature", "seconds")
WORDS = ("speaker", "format")
RECORDING_TYPES = ("audio/wav", "audio/x-wav", "audio/wave", "audio/flac", "audio/x-flac")


class SpeakRoute:
    """The endpoints, over a model registry."""

    def __init__(self, registry: ModelRegistry, settings: Settings):
        self._registry, self._settings = registry, settings
        self._workers = WorkerPool(settings.timeout_seconds)

    def routes(self) -> list[Route]:
        """Speak, and what there is to re-speak."""
        return [
            Route("/v1/models/{name:name}:speak", self.speak, methods=["POST"]),
            Route("/v1/models/{name:name}/examples", self.list_examples),
        ]

    async def speak(self, request: Request) -> StreamedResponse:
        """Streams the sound of a recording, of frames or of a text."""
        served = require_kind(model_from_path(self._registry, request), "sound")
        body = await body_of(request, self._settings.timeout_seconds)
        fields = await read_with(_fields, body, request)
        name = choice(fields, "format", "wav", FORMATS)
        synthesis = await cancel_on_disconnect(
            request.receive, self._synthesis_request(served, fields)
        )
        form = stream_format(name, served.spec["sample_rate_hz"], synthesis.num_samples)
        chunks = synthesize(served, synthesis)
        headers = {"x-num-samples": str(synthesis.num_samples)}
        stall_seconds = self._settings.timeout_seconds
        return StreamedResponse(streamed(chunks, form), form.media_type, stall_seconds, headers)

    async def list_examples(self, request: Request) -> Response:
        """The recordings to re-speak; none for a model that needs none."""
        served = model_from_path(self._registry, request)
        usable = served.kind == "sound" and is_conditional(served)
        return json_response(
            {
                "examples": [
                    {"name": example.name, "text": example.text, "seconds": example.seconds}
                    for example in (examples().values() if usable else ())
                ]
            }
        )

    async def _synthesis_request(self, served: ServedModel, fields: Fields) -> SynthesisRequest:
        given = [name for name in SOURCES if fields.get(name) is not None]
        if not is_conditional(served):
            if given:
                raise InvalidInput(f"`{given[0]}` must not be given: the model needs none.")
            return synthesis_request(served, fields, None)
        if len(given) != 1:
            raise InvalidInput(f"The body must have one of {', '.join(SOURCES)}.")
        return synthesis_request(served, fields, await self._frames(served, given[0], fields))

    async def _frames(self, served: ServedModel, source: str, fields: Fields) -> np.ndarray:
        if source == "frames":
            info = signature(served).inputs["frames"]
            return (await self._workers.run(json_tensor, "frames", [fields["frames"]], info))[0]
        if source == "text":
            words = text(fields, "text", MAX_CHARACTERS)
            return await self._workers.run(text_frames, served.bundle, words)
        if source == "example":
            data = await asyncio.to_thread(_example, text(fields, "example", MAX_NAME_CHARACTERS))
        elif isinstance(fields["recording"], bytes):
            data = fields["recording"]
        else:
            data = base64_bytes("recording", fields["recording"])
        return await self._workers.run(frames_from_recording, served, data)


def frames_from_recording(served: ServedModel, data: bytes) -> np.ndarray:
    """The frames that describe a recording, float32 [frames, channels]."""
    from serving.http.uploaded_recordings import decode_recording

    waveform = decode_recording(data, served.spec["sample_rate_hz"], max_seconds(served))
    return np.asarray(served.speech_bundle.frames(waveform), np.float32)


def _example(name: str | None) -> bytes:
    example = examples().get(name or "")
    if example is None:
        raise NotFound(f"There is no example {excerpt(name)}; there are {', '.join(examples())}.")
    return example.path.read_bytes()


def _fields(body: bytes, request: Request) -> dict[str, Any]:
    """The fields of a JSON body; or of the query, with the body as the recording."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in RECORDING_TYPES:
        return json_object(body)
    fields: dict[str, Any] = {"recording": body}
    for name, value in request.query_params.items():
        if name in WORDS:
            fields[name] = value
        elif name in NUMBERS:
            fields[name] = _number(name, value)
    return fields


def _number(name: str, value: str) -> Any:
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise invalid_field(name, "a number", value) from error
