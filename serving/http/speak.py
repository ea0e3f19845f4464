"""Our own route of sound: recordings, frames or text in, sound out as it is made."""

import asyncio
from typing import Any

import numpy as np
import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serving.engine.registry import Served, Table
from serving.errors import InvalidInput, NotFound
from serving.http.audio_formats import stream_format, streamed
from serving.http.disconnects import unless_gone
from serving.http.example_recordings import examples
from serving.http.fields import Fields, choice, json_object, refused, shown, text
from serving.http.json_responses import json_answer
from serving.http.json_tensors import base64_bytes, json_tensor
from serving.http.model_lookup import MAX_NAME_CHARACTERS, of_kind, served_at
from serving.http.request_bodies import body_of, read_with
from serving.http.streamed_responses import StreamedAnswer
from serving.http.synthesis_requests import (
    Wish,
    Workshop,
    chunks_of,
    is_conditional,
    max_seconds,
    signature,
    text_frames,
    wish,
)
from serving.settings import Settings

FORMATS = ("wav", "l16")
SOURCES = ("frames", "recording", "example", "text")
NUMBERS = ("seed", "row", "temperature", "seconds")
WORDS = ("speaker", "format")
RECORDING_TYPES = ("audio/wav", "audio/x-wav", "audio/wave", "audio/flac", "audio/x-flac")
MAX_TEXT_CHARACTERS = 4096


class Audio:
    """The endpoints, over a table of models."""

    def __init__(self, table: Table, settings: Settings):
        self._table, self._settings = table, settings
        self._workshop = Workshop(settings.timeout_seconds)

    def routes(self) -> list[Route]:
        """Speak, and what there is to re-speak."""
        return [
            Route("/v1/models/{name:name}:speak", self.speak, methods=["POST"]),
            Route("/v1/models/{name:name}/examples", self.list_examples),
        ]

    async def speak(self, request: Request) -> StreamedAnswer:
        """Streams the sound of a recording, of frames or of a text."""
        served = of_kind(served_at(self._table, request), "sound")
        body = await body_of(request, self._settings.timeout_seconds)
        fields = await read_with(_fields, body, request)
        name = choice(fields, "format", "wav", FORMATS)
        form = stream_format(name, served.spec["sample_rate_hz"])
        found = await unless_gone(request.receive, self._wish(served, fields))
        chunks = chunks_of(served, found)
        headers = {"x-num-samples": str(found.num_samples)}
        stall_seconds = self._settings.timeout_seconds
        return StreamedAnswer(streamed(chunks, form), form.media_type, stall_seconds, headers)

    async def list_examples(self, request: Request) -> Response:
        """The recordings to re-speak; none for a model that needs none."""
        served = served_at(self._table, request)
        usable = served.kind == "sound" and is_conditional(served)
        return json_answer(
            {
                "examples": [
                    {"name": example.name, "text": example.text, "seconds": example.seconds}
                    for example in (examples().values() if usable else ())
                ]
            }
        )

    async def _wish(self, served: Served, fields: Fields) -> Wish:
        given = [name for name in SOURCES if fields.get(name) is not None]
        if not is_conditional(served):
            if given:
                raise InvalidInput(f"`{given[0]}` must not be given: the model needs none.")
            return wish(served, fields, None)
        if len(given) != 1:
            raise InvalidInput(f"The body must have one of {', '.join(SOURCES)}.")
        return wish(served, fields, await self._frames(served, given[0], fields))

    async def _frames(self, served: Served, source: str, fields: Fields) -> np.ndarray:
        if source == "frames":
            info = signature(served).inputs["frames"]
            return (await self._workshop.do(json_tensor, "frames", [fields["frames"]], info))[0]
        if source == "text":
            words = text(fields, "text", MAX_TEXT_CHARACTERS)
            return await self._workshop.do(text_frames, served.bundle, words)
        if source == "example":
            data = await asyncio.to_thread(_example, text(fields, "example", MAX_NAME_CHARACTERS))
        elif isinstance(fields["recording"], bytes):
            data = fields["recording"]
        else:
            data = base64_bytes("recording", fields["recording"])
        return await self._workshop.do(frames_of_recording, served, data)


def frames_of_recording(served: Served, data: bytes) -> np.ndarray:
    """The frames that describe a recording, float32 [frames, channels]."""
    from serving.http.uploaded_recordings import waveform_of

    waveform = waveform_of(data, served.spec["sample_rate_hz"], max_seconds(served))
    return np.asarray(served.bundle.frames(waveform), np.float32)


def _example(name: str | None) -> bytes:
    example = examples().get(name or "")
    if example is None:
        raise NotFound(f"There is no example {shown(name)}; there are {', '.join(examples())}.")
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
        raise refused(name, "a number", value) from error
