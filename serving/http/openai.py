"""OpenAI's routes: `POST /v1/audio/speech` and `POST /v1/images/generations`."""

import asyncio
import base64
import contextlib
import secrets
import time
from typing import Annotated, Any, Literal

import numpy as np
import orjson
from pydantic import Field, create_model
from starlette.requests import Request
from starlette.responses import Response

from onepass.bundles.errors import InvalidInput
from onepass.bundles.image_sampling import CONDITIONS, image_inputs
from onepass.bundles.signature import fastest
from onepass.speech.phonemes import characters_at, text_parts
from onepass.speech.ssml import is_ssml
from serving.engine.audio_formats import Data, encode_sound
from serving.engine.drawing import condition, condition_input, encode_image, scales, signature
from serving.engine.fields import Fields, Name, Seed, excerpt, invalid_field
from serving.engine.served_model import ServedModel
from serving.engine.speech import SynthesisFields, Temperature, check_length, speak_parts, speakers
from serving.http.draw import number_of_images
from serving.http.operations import Bytes, Endpoints, post
from serving.http.request_bodies import json_model, read_body
from serving.http.responses import StreamedResponse, cancel_on_disconnect, json_response

MAX_TEXT_CHARACTERS = 4096  # OpenAI's limit
SOUNDS = ("audio/mpeg", "audio/ogg", "audio/flac", "audio/wav", "audio/pcm")


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
    temperature: Temperature | None = None


# A server-sent event, in the form that tools for OpenAPI 3.1 expect.
EVENT = create_model("SpeechEvent", data=str)
EVENTS = "text/event-stream"
ANSWERS = {**dict.fromkeys(SOUNDS, Bytes), EVENTS: EVENT}


class OpenaiSpeech(Endpoints):
    """The endpoint for speech."""

    @post("/v1/audio/speech", ANSWERS, SpeechRequest)
    async def speech(self, request: Request) -> StreamedResponse:
        """Speak a text; `wav` and `pcm` are streamed, other formats are sent as a complete file.

        `pcm` has a sample rate of 24,000 Hz, like OpenAI's. A long text is split between sentences
        into parts, which are spoken one after another; the parts of slow speech are shorter.
        """
        parsed = await read_body(request, json_model, SpeechRequest)
        served = self._model_named(request, parsed.model, "sound")
        speed, limit = parsed.speed or 1.0, self._settings.timeout_seconds
        check_length(parsed.input, MAX_TEXT_CHARACTERS, speed)
        texts = [parsed.input]
        if not is_ssml(parsed.input):  # which cannot be split
            texts = text_parts(parsed.input, characters_at(speed))
        options: Any = {"seed": parsed.seed, "temperature": parsed.temperature}
        fields = SynthesisFields(speaker=_speaker(served, parsed.voice), **options)
        work = speak_parts(served, fields, texts, speed, limit)
        num_samples, sound = await cancel_on_disconnect(request.receive, work)
        name, rate_hz = parsed.response_format or "mp3", served.spec["sample_rate_hz"]
        media_type, data = encode_sound(name, sound, rate_hz, num_samples, limit)
        if parsed.stream_format == "sse":
            media_type, data = EVENTS, _events(data)
        return StreamedResponse(data, media_type, limit)


def _speaker(served: ServedModel, voice: str | Voice | None) -> str | None:
    name = voice.id if isinstance(voice, Voice) else voice
    known = speakers(served)
    if not known or name in (None, "default"):
        return None
    if name not in known:
        known_names = ", ".join(("default", *known))
        raise InvalidInput(f"`voice` must be one of {known_names}, got {excerpt(name)}.")
    return name


async def _events(data: Data) -> Data:
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


IMAGE: Any = create_model("EncodedImage", b64_json=str)
FACTS: Any = dict.fromkeys(("output_format", "size", "background"), (str, ...))
IMAGES = create_model("GeneratedImages", created=int, data=list[IMAGE], **FACTS)


class OpenaiImages(Endpoints):
    """The endpoint for images."""

    @post("/v1/images/generations", IMAGES, ImagesRequest)
    async def generate(self, request: Request) -> Response:
        """Draw images and return them as base64."""
        parsed = await read_body(request, json_model, ImagesRequest)
        served = self._model_named(request, parsed.model, "picture")
        if parsed.stream:
            raise InvalidInput("`stream` must be false; `:draw` streams images.")
        file = parsed.output_format or "png"
        side, output = _scale(served, parsed.size or "auto")
        num = number_of_images("n", parsed.n, self._settings.max_rows)
        seed = secrets.randbits(64) if parsed.seed is None else parsed.seed
        needed = condition_input(served)
        if needed == "map":
            raise InvalidInput("`model` needs a map of labels; use `:draw`.")
        prompt = {} if needed is None else {CONDITIONS[needed]: parsed.prompt}
        given = condition(served, prompt, "prompt")
        batch = image_inputs(signature(served).inputs, seed, range(num), condition=given)
        work = served.predict(batch, fastest(served.signatures))
        drawn = await cancel_on_disconnect(request.receive, work)
        data = await asyncio.to_thread(_encode_images, drawn[output], file)
        facts = {"output_format": file, "size": f"{side}x{side}", "background": "opaque"}
        return json_response({"created": int(time.time()), "data": data, **facts})


def _scale(served: ServedModel, size: str) -> tuple[int, str]:
    sizes = {f"{side}x{side}": (side, output) for side, output in scales(served)}
    sizes["auto"] = scales(served)[-1]
    if size not in sizes:
        raise invalid_field("size", f"one of {', '.join(sizes)}", size)
    return sizes[size]


def _encode_images(images: np.ndarray, file: str) -> list[dict[str, str]]:
    return [{"b64_json": base64.b64encode(encode_image(each, file)).decode()} for each in images]
