"""The routes that stream speech and images: onepass's own, and OpenAI's."""

import asyncio
import base64
import contextlib
import functools
import json
import logging
import secrets
import time
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal

import numpy as np
import orjson
from pydantic import Field, WithJsonSchema, create_model
from starlette.requests import Request
from starlette.responses import Response

from onepass.bundles.errors import Internal, InvalidInput, ServingError
from onepass.bundles.sampling import CONDITIONS, image_inputs
from onepass.bundles.signature import Arrays, fastest
from onepass.speech import text_times
from onepass.speech.markup import is_ssml, note_on_markup
from onepass.speech.phonemes import MAX_CHARACTERS, characters_at, text_parts
from pixelcnn.data.captions import MAX_CAPTION_CHARACTERS
from serving.engine import drawing, speech
from serving.engine.clients import run_in_turn
from serving.engine.fields import Fields, Name, Seed, as_model, excerpt, invalid_field
from serving.engine.served_model import ServedModel
from serving.http import routes

LOG = logging.getLogger(__name__)
MEDIA_TYPE = "application/x-ndjson"
MAP_ROWS = {"type": "array", "items": {"type": "integer"}, "minItems": 1}
Map = Annotated[Any, WithJsonSchema({"type": "array", "items": MAP_ROWS, "minItems": 1})]
SOURCES = ("frames", "recording", "example", "text", "phonemes")
Word = Annotated[str, Field(min_length=1, max_length=100)]
Pronunciation = Annotated[str, Field(min_length=1, max_length=200)]
Pronunciations = Annotated[dict[Word, Pronunciation], Field(max_length=1000, fail_fast=True)]
Text = Annotated[str, Field(max_length=MAX_CHARACTERS)]
RECORDING_TYPES = ("audio/wav", "audio/x-wav", "audio/wave", "audio/flac", "audio/x-flac")
FRAMES_ROWS = {"type": "array", "items": {"type": "number"}, "minItems": 1}
FRAMES = {"type": "array", "items": FRAMES_ROWS, "minItems": 1}
BASE64 = {"type": ["string", "null"], "contentEncoding": "base64"}
EXAMPLE: Any = create_model("ExampleEntry", name=str, text=str, seconds=float)
EXAMPLES = create_model("Examples", examples=list[EXAMPLE])
MAX_TEXT_CHARACTERS = 4096  # OpenAI's limit
SOUNDS = ("audio/mpeg", "audio/ogg", "audio/flac", "audio/wav", "audio/pcm")
# A server-sent event, in the form that tools for OpenAPI 3.1 expect.
EVENT = create_model("SpeechEvent", data=str)
EVENTS = "text/event-stream"
ANSWERS = {**dict.fromkeys(SOUNDS, routes.Bytes), EVENTS: EVENT}
IMAGE: Any = create_model("EncodedImage", b64_json=str)
FACTS: Any = dict.fromkeys(("output_format", "size", "background"), (str, ...))
IMAGES = create_model("GeneratedImages", created=int, data=list[IMAGE], **FACTS)


class DrawRequest(Fields):
    """A request for images, with the condition that the model needs: class, caption or map."""

    label: str | int | None = Field(None, alias="class")
    caption: Annotated[str, Field(max_length=MAX_CAPTION_CHARACTERS)] | None = None
    map: Map = None
    seed: Seed | None = None
    num: Annotated[int, Field(ge=1)] | None = None
    temperature: float | Annotated[list[float], Field(min_length=1, fail_fast=True)] | None = None
    guidance: Annotated[float, Field(ge=0)] | None = None


class DrawRoute(routes.Endpoints):
    """The endpoint for drawing images."""

    @routes.post("/v1/models/{name}:draw", {MEDIA_TYPE: str}, DrawRequest)
    async def draw(self, request: Request) -> routes.StreamedResponse:
        """Stream images as lines of JSON, one line per scale."""
        served = self._model_at(request, "picture")
        parsed = await routes.read_body(request, routes.json_model, DrawRequest)
        given = {"class": parsed.label, "caption": parsed.caption, "map": parsed.map}
        value = drawing.condition(served, {n: v for n, v in given.items() if v is not None})
        num = number_of_images("num", parsed.num, self._settings.max_rows)
        known, heat = drawing.signature(served).inputs, parsed.temperature
        heat = 1.0 if heat is None else heat
        rows = [
            image_inputs(known, parsed.seed or 0, [row], heat, parsed.guidance or 0.0, value)
            for row in range(num)
        ]
        lines, seconds = _lines(served, rows), self._settings.timeout_seconds
        return routes.StreamedResponse(lines, MEDIA_TYPE, seconds)


def number_of_images(field: str, num: int | None, most: int) -> int:
    """Return the number of images of a request, by default 1; raise InvalidInput above `most`."""
    if num is not None and num > most:
        raise invalid_field(field, f"an integer from 1 to {most}", num)
    return num or 1


async def _lines(served: ServedModel, rows: list[Arrays]) -> AsyncGenerator[bytes, None]:
    started = False
    try:
        async with contextlib.aclosing(drawing.image_scales(served, rows)) as images:
            async for number, image, last in images:
                yield await asyncio.to_thread(_line, number, image, last)
                started = True
    except Exception as error:
        if not started:
            raise
        if not isinstance(error, ServingError):
            LOG.error("drawing failed", exc_info=error)
            error = Internal()
        yield orjson.dumps({"error": str(error)}) + b"\n"


def _line(number: int, image: np.ndarray, last: bool) -> bytes:
    png = base64.b64encode(drawing.encode_image(image)).decode()
    return orjson.dumps({"picture": number, "side": len(image), "last": last, "png": png}) + b"\n"


class SpeakQuery(speech.SynthesisFields):
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


class SpeakRoute(routes.Endpoints):
    """The endpoints for speech."""

    @routes.post(
        "/v1/models/{name}:speak",
        {"audio/wav": routes.Bytes, "audio/L16": routes.Bytes},
        {routes.JSON: SpeakRequest, **dict.fromkeys(RECORDING_TYPES, routes.Bytes)},
        query={name: field.rebuild_annotation() for name, field in SpeakQuery.model_fields.items()},
    )
    async def speak(self, request: Request) -> routes.StreamedResponse:
        """Stream speech for a recording, frames or a text, or from an unconditional model."""
        served, seconds = self._model_at(request, "sound"), self._settings.timeout_seconds
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind in RECORDING_TYPES:
            query = as_model(dict(request.query_params), SpeakQuery, are_texts=True)
            fields = SpeakRequest.model_construct(**dict(query))
            body = await routes.read_body(request, bytes)
            work: Any = speech.frames_of(served, "recording", body, seconds)
        else:
            fields = await routes.read_body(request, routes.json_model, SpeakRequest)
            work = _frames(served, fields, seconds)
        frames = await routes.cancel_on_disconnect(request.receive, work)
        words = await _words(served, fields, seconds) if fields.times else ""
        num_samples, chunks = speech.synthesis(served, fields, frames)
        name, rate_hz = fields.format or "wav", served.spec["sample_rate_hz"]
        media_type, data = speech.encode_sound(name, chunks, rate_hz, num_samples, seconds)
        headers = {"x-num-samples": str(num_samples)}
        if fields.text is not None and (note := note_on_markup(fields.text)):
            headers["x-note"] = note.encode("ascii", "backslashreplace").decode().replace("\n", " ")
        headers |= {"x-words": words} if words else {}
        return routes.StreamedResponse(data, media_type, seconds, headers)

    @routes.get("/v1/models/{name}/examples", EXAMPLES)
    async def list_examples(self, request: Request) -> Response:
        """Return the example recordings; [] unless the model generates sound from frames."""
        served = self._model_at(request)
        usable = served.kind == "sound" and speech.is_conditional(served)
        found = list(speech.examples().values()) if usable else []
        return routes.json_response({"examples": found})


async def _words(served: ServedModel, fields: SpeakRequest, limit: float) -> str:
    """Return the times of the words of a text or of phonemes, as JSON in ASCII."""
    more: Any = {"phonemes": fields.phonemes, "pronunciations": fields.pronunciations}
    work = functools.partial(text_times, served.bundle, fields.text, **more)
    words = [(x.word, round(x.start, 3), round(x.end, 3)) for x in await run_in_turn(limit, work)]
    return json.dumps(words, separators=(",", ":"))


async def _frames(served: ServedModel, fields: SpeakRequest, limit: float) -> np.ndarray | None:
    """Return the frames of the request's only source; None for an unconditional model."""
    given = [name for name in SOURCES if getattr(fields, name) is not None]
    if not given and not speech.is_conditional(served):
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
    return await speech.frames_of(served, given[0], getattr(fields, given[0]), limit, **more)


class Voice(Fields):
    """A voice in the form of an object."""

    id: str


class SpeechRequest(Fields):
    """A text to speak; `instructions` and other fields of OpenAI's protocol are ignored."""

    input: Annotated[str, Field(min_length=1, max_length=MAX_TEXT_CHARACTERS, pattern=r"\S")]
    model: Name | None = None
    voice: str | Voice | None = None
    response_format: Literal["mp3", "opus", "ogg", "flac", "wav", "pcm"] | None = None
    stream_format: Literal["audio", "sse"] | None = None
    speed: Annotated[float, Field(ge=0.25, le=4)] | None = None
    seed: Seed | None = None
    temperature: speech.Temperature | None = None


class OpenaiSpeech(routes.Endpoints):
    """The endpoint for speech."""

    @routes.post("/v1/audio/speech", ANSWERS, SpeechRequest)
    async def speech(self, request: Request) -> routes.StreamedResponse:
        """Speak a text; `wav` and `pcm` are streamed, other formats are sent as a complete file.

        `pcm` has a sample rate of 24,000 Hz, like OpenAI's. A long text is split between sentences
        into parts, which are spoken one after another; the parts of slow speech are shorter.
        """
        parsed = await routes.read_body(request, routes.json_model, SpeechRequest)
        served = self._model_named(request, parsed.model, "sound")
        speed, limit = parsed.speed or 1.0, self._settings.timeout_seconds
        speech.check_length(parsed.input, MAX_TEXT_CHARACTERS, speed)
        texts = [parsed.input]
        if not is_ssml(parsed.input):  # which cannot be split
            texts = text_parts(parsed.input, characters_at(speed))
        options: Any = {"seed": parsed.seed, "temperature": parsed.temperature}
        fields = speech.SynthesisFields(speaker=_speaker(served, parsed.voice), **options)
        work = speech.speak_parts(served, fields, texts, speed, limit)
        num_samples, sound = await routes.cancel_on_disconnect(request.receive, work)
        name, rate_hz = parsed.response_format or "mp3", served.spec["sample_rate_hz"]
        media_type, data = speech.encode_sound(name, sound, rate_hz, num_samples, limit)
        if parsed.stream_format == "sse":
            media_type, data = EVENTS, _events(data)
        return routes.StreamedResponse(data, media_type, limit)


def _speaker(served: ServedModel, voice: str | Voice | None) -> str | None:
    name = voice.id if isinstance(voice, Voice) else voice
    known = speech.speakers(served)
    if not known or name in (None, "default"):
        return None
    if name not in known:
        known_names = ", ".join(("default", *known))
        raise InvalidInput(f"`voice` must be one of {known_names}, got {excerpt(name)}.")
    return name


async def _events(data: speech.Data) -> speech.Data:
    async with contextlib.aclosing(data):
        async for piece in data:
            event = {"type": "speech.audio.delta", "audio": base64.b64encode(piece).decode()}
            yield b"data: " + orjson.dumps(event) + b"\n\n"
    usage = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
    yield b"data: " + orjson.dumps({"type": "speech.audio.done", "usage": usage}) + b"\n\n"


class ImagesRequest(Fields):
    """A request for images; fields that do not apply here, such as `quality`, are ignored."""

    prompt: Annotated[str, Field(min_length=1, max_length=4000, pattern=r"\S")]
    model: Name | None = None
    n: Annotated[int, Field(ge=1, le=10)] | None = None
    size: str | None = None
    response_format: Literal["b64_json"] | None = None
    output_format: Literal["png", "jpeg", "webp"] | None = None
    seed: Seed | None = None
    stream: bool | None = None


class OpenaiImages(routes.Endpoints):
    """The endpoint for images."""

    @routes.post("/v1/images/generations", IMAGES, ImagesRequest)
    async def generate(self, request: Request) -> Response:
        """Draw images and return them as base64."""
        parsed = await routes.read_body(request, routes.json_model, ImagesRequest)
        served = self._model_named(request, parsed.model, "picture")
        if parsed.stream:
            raise InvalidInput("`stream` must be false; `:draw` streams images.")
        file = parsed.output_format or "png"
        sizes = {f"{side}x{side}": (side, output) for side, output in drawing.scales(served)}
        sizes["auto"], size = drawing.scales(served)[-1], parsed.size or "auto"
        if size not in sizes:
            raise invalid_field("size", f"one of {', '.join(sizes)}", size)
        side, output = sizes[size]
        num = number_of_images("n", parsed.n, self._settings.max_rows)
        seed = secrets.randbits(64) if parsed.seed is None else parsed.seed
        needed = drawing.condition_input(served)
        if needed == "map":
            raise InvalidInput("`model` needs a map of labels; use `:draw`.")
        prompt = {} if needed is None else {CONDITIONS[needed]: parsed.prompt}
        given = drawing.condition(served, prompt, "prompt")
        batch = image_inputs(drawing.signature(served).inputs, seed, range(num), condition=given)
        work = served.predict(batch, fastest(served.signatures))
        drawn = await routes.cancel_on_disconnect(request.receive, work)
        data = await asyncio.to_thread(_encode_images, drawn[output], file)
        facts = {"output_format": file, "size": f"{side}x{side}", "background": "opaque"}
        return routes.json_response({"created": int(time.time()), "data": data, **facts})


def _encode_images(images: np.ndarray, file: str) -> list[dict[str, str]]:
    files = [drawing.encode_image(each, file) for each in images]
    return [{"b64_json": base64.b64encode(each).decode()} for each in files]
