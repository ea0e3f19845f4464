"""The routes that stream speech for recordings, frames or texts, and list recordings."""

import functools
import json
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, WithJsonSchema, create_model
from starlette.requests import Request
from starlette.responses import Response

from onepass.bundles.errors import InvalidInput
from onepass.speech.phonemes import MAX_CHARACTERS
from onepass.speech.ssml import note_on_markup
from serving.engine.audio_formats import encode_sound
from serving.engine.fields import Name, as_model
from serving.engine.preparation import run_in_turn
from serving.engine.recordings import examples
from serving.engine.served_model import ServedModel
from serving.engine.speech import (
    SynthesisFields,
    frames_of,
    is_conditional,
    synthesis,
    time_words,
)
from serving.http.operations import Bytes, Endpoints, get, post
from serving.http.request_bodies import json_model, read_body
from serving.http.responses import JSON, StreamedResponse, cancel_on_disconnect, json_response

SOURCES = ("frames", "recording", "example", "text", "phonemes")
Word = Annotated[str, Field(min_length=1, max_length=100)]
Pronunciation = Annotated[str, Field(min_length=1, max_length=200)]
Pronunciations = Annotated[dict[Word, Pronunciation], Field(max_length=1000, fail_fast=True)]
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
    If `force` is true, frames that are unlike the training data are accepted. If `times` is true,
    the header X-Words has the words of a text or of phonemes, each with the seconds at which it
    begins and ends: [["Hello", 0.07, 0.44], ...].
    """

    frames: Annotated[Any, WithJsonSchema(FRAMES)] = None
    recording: Annotated[str | None, WithJsonSchema(BASE64)] = None
    example: Name | None = None
    text: Text | None = None
    phonemes: Text | None = None
    pronunciations: Pronunciations | None = None
    force: bool | None = None
    times: bool | None = None


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
            body = await read_body(request, bytes)
            work: Any = frames_of(served, "recording", body, seconds)
        else:
            fields = await read_body(request, json_model, SpeakRequest)
            work = _frames(served, fields, seconds)
        frames = await cancel_on_disconnect(request.receive, work)
        words = await _words(served, fields, seconds) if fields.times else ""
        num_samples, chunks = synthesis(served, fields, frames)
        name, rate_hz = fields.format or "wav", served.spec["sample_rate_hz"]
        media_type, data = encode_sound(name, chunks, rate_hz, num_samples, seconds)
        headers = {"x-num-samples": str(num_samples)}
        if fields.text is not None and (note := note_on_markup(fields.text)):
            headers["x-note"] = note.encode("ascii", "backslashreplace").decode().replace("\n", " ")
        headers |= {"x-words": words} if words else {}
        return StreamedResponse(data, media_type, seconds, headers)

    @get("/v1/models/{name}/examples", EXAMPLES)
    async def list_examples(self, request: Request) -> Response:
        """Return the example recordings; [] unless the model generates sound from frames."""
        served = self._model_at(request)
        usable = served.kind == "sound" and is_conditional(served)
        return json_response({"examples": list(examples().values()) if usable else []})


async def _words(served: ServedModel, fields: SpeakRequest, limit: float) -> str:
    """Return the times of the words of a text or of phonemes, as JSON in ASCII."""
    more = {"phonemes": fields.phonemes, "pronunciations": fields.pronunciations}
    work = functools.partial(time_words, served, fields.text, **more)
    return json.dumps(await run_in_turn(limit, work), separators=(",", ":"))


async def _frames(served: ServedModel, fields: SpeakRequest, limit: float) -> np.ndarray | None:
    """Return the frames of the request's only source; None for an unconditional model."""
    given = [name for name in SOURCES if getattr(fields, name) is not None]
    if not given and not is_conditional(served):
        return None
    if len(given) != 1:
        raise InvalidInput(f"The body must have one of {', '.join(SOURCES)}.")
    if fields.times and given[0] not in ("text", "phonemes"):
        raise InvalidInput("`times` must not be given without `text` or `phonemes`.")
    more: dict[str, Any] = {"force": True} if fields.force else {}
    if fields.pronunciations is not None:
        if given != ["text"]:
            raise InvalidInput("`pronunciations` must not be given without `text`.")
        more = {"pronunciations": fields.pronunciations}
    return await frames_of(served, given[0], getattr(fields, given[0]), limit, **more)
