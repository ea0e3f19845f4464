"""The routes that stream speech for recordings, frames or texts, and list recordings."""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, WithJsonSchema, create_model
from starlette.requests import Request
from starlette.responses import Response

from onepass.bundles.errors import InvalidInput, NotFound
from onepass.bundles.frames import check_convention
from onepass.speech.phonemes import MAX_CHARACTERS
from onepass.speech.ssml import note_on_markup
from serving.engine.audio_formats import encode_stream, stream_format
from serving.engine.fields import Name, as_model, excerpt
from serving.engine.json_tensors import base64_bytes, json_tensor
from serving.engine.preparation import run_in_turn
from serving.engine.recordings import example_path, examples
from serving.engine.served_model import ServedModel
from serving.engine.speech import (
    SynthesisFields,
    check_length,
    is_conditional,
    recording_frames,
    signature,
    synthesis,
    text_frames,
)
from serving.http.operations import Bytes, Endpoints, get, post
from serving.http.request_bodies import body_of, json_model, read_body
from serving.http.responses import JSON, StreamedResponse, cancel_on_disconnect, json_response

SOURCES = ("frames", "recording", "example", "text", "phonemes")
Word = Annotated[str, Field(min_length=1, max_length=100)]
Pronunciation = Annotated[str, Field(min_length=1, max_length=200)]
Text = Annotated[str, Field(max_length=MAX_CHARACTERS)]
RECORDING_TYPES = ("audio/wav", "audio/x-wav", "audio/wave", "audio/flac", "audio/x-flac")
ROWS = {"type": "array", "items": {"type": "number"}, "minItems": 1}
FRAMES = {"type": "array", "items": ROWS, "minItems": 1}
BASE64 = {"type": ["string", "null"], "contentEncoding": "base64"}


class SpeakQuery(SynthesisFields):
    """Options and format of the speech, also as the query of a request with a recording as body."""

    format: Literal["wav", "l16"] | None = None


class SpeakRequest(SpeakQuery):
    """A request to speak frames, a recording (base64), an example, a text or phonemes (IPA).

    `pronunciations` has the IPA of words of the text.
    If `force` is true, frames that are unlike the training data are accepted.
    """

    frames: Annotated[Any, WithJsonSchema(FRAMES)] = None
    recording: Annotated[str | None, WithJsonSchema(BASE64)] = None
    example: Name | None = None
    text: Text | None = None
    phonemes: Text | None = None
    pronunciations: Annotated[dict[Word, Pronunciation], Field(max_length=1000)] | None = None
    force: bool | None = None


EXAMPLE: Any = create_model("ExampleEntry", name=str, text=str, seconds=float)
EXAMPLES = create_model("Examples", examples=list[EXAMPLE])


class SpeakRoute(Endpoints):
    """The endpoints for speech."""

    @post(
        "/v1/models/{name}:speak",
        {"audio/wav": Bytes, "audio/L16": Bytes},
        {JSON: SpeakRequest, **dict.fromkeys(RECORDING_TYPES, Bytes)},
        query={name: field.rebuild_annotation() for name, field in SpeakQuery.model_fields.items()},
    )
    async def speak(self, request: Request) -> StreamedResponse:
        """Stream speech for a recording, frames or a text, or from an unconditional model."""
        served, seconds = self._model_at(request, "sound"), self._settings.timeout_seconds
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind in RECORDING_TYPES:
            query = as_model(dict(request.query_params), SpeakQuery, are_texts=True)
            fields = SpeakRequest.model_construct(**dict(query))
            body = await body_of(request)
            work: Any = self._conditional_frames(served, "recording", body)
        else:
            fields = await read_body(request, json_model, SpeakRequest)
            work = self._frames(served, fields)
        frames = await cancel_on_disconnect(request.receive, work)
        num_samples, chunks = synthesis(served, fields, frames)
        form = stream_format(fields.format or "wav", served.spec["sample_rate_hz"], num_samples)
        headers = {"x-num-samples": str(num_samples)}
        if fields.text is not None and (note := note_on_markup(fields.text)):
            headers["x-note"] = note.encode("ascii", "backslashreplace").decode().replace("\n", " ")
        return StreamedResponse(encode_stream(chunks, form), form.media_type, seconds, headers)

    @get("/v1/models/{name}/examples", EXAMPLES)
    async def list_examples(self, request: Request) -> Response:
        """Return the example recordings; [] unless the model generates sound from frames."""
        served = self._model_at(request)
        usable = served.kind == "sound" and is_conditional(served)
        return json_response({"examples": list(examples().values()) if usable else []})

    async def _frames(self, served: ServedModel, fields: SpeakRequest) -> np.ndarray | None:
        """Return the frames of the request's only source; None for an unconditional model."""
        given = [name for name in SOURCES if getattr(fields, name) is not None]
        if not given and not is_conditional(served):
            return None
        if len(given) != 1:
            raise InvalidInput(f"The body must have one of {', '.join(SOURCES)}.")
        if fields.pronunciations is not None and given != ["text"]:
            raise InvalidInput("`pronunciations` must not be given without `text`.")
        value = getattr(fields, given[0])
        return await self._conditional_frames(served, given[0], value, fields)

    async def _conditional_frames(
        self, served: ServedModel, source: str, value: Any, fields: SpeakRequest | None = None
    ) -> np.ndarray:
        limit = self._settings.timeout_seconds
        if not is_conditional(served):
            raise InvalidInput(f"`{source}` must not be given: the model is unconditional.")
        if source in ("text", "phonemes"):
            if source == "text":
                check_length(value)
            size = len(value)
            return await run_in_turn(
                limit, _frames_of_words, served, fields, in_pieces=True, size=size
            )
        if source == "frames":
            info = signature(served).inputs["frames"]
            frames = (await run_in_turn(limit, json_tensor, "frames", [value], info))[0]
            if fields is None or not fields.force:
                check_convention(served.spec, frames)
            return frames
        if source == "example":
            value = await asyncio.to_thread(_example, value)
        elif isinstance(value, str):
            value = base64_bytes("recording", value)
        return await run_in_turn(limit, recording_frames, served, value)


def _frames_of_words(
    served: ServedModel, fields: SpeakRequest, *, pause: Callable[[], None]
) -> np.ndarray:
    more: dict[str, Any] = {"phonemes": fields.phonemes, "pronunciations": fields.pronunciations}
    more = {name: value for name, value in more.items() if value is not None}
    return text_frames(served, fields.text, pause=pause, **more)


def _example(name: str) -> bytes:
    if name not in examples():
        raise NotFound(f"There is no example {excerpt(name)}; there are {', '.join(examples())}.")
    return example_path(name).read_bytes()
