"""OpenAI's `POST /v1/images/generations`: a prompt is a class, by name or number, or a caption."""

import asyncio
import base64
import secrets
import time
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serving.engine.registry import ModelRegistry
from serving.engine.served_model import ServedModel
from serving.errors import InvalidInput
from serving.http.disconnects import cancel_on_disconnect
from serving.http.fields import MAX_SEED, Fields, choice, integer, json_object, required_text
from serving.http.image_requests import (
    caption,
    condition_input,
    encode_image,
    inputs,
    label,
    scales,
)
from serving.http.json_responses import json_response
from serving.http.model_lookup import model_from_fields, preferred_signature
from serving.http.request_bodies import body_of, read_with
from serving.settings import Settings

MAX_PROMPT_CHARACTERS = 4000
MAX_IMAGES = 10  # as OpenAI has it
FILES = {"png": "PNG", "jpeg": "JPEG", "webp": "WEBP"}
SEED_BITS = 62


class OpenaiImages:
    """The endpoint, over a model registry."""

    def __init__(self, registry: ModelRegistry, settings: Settings):
        self._registry, self._settings = registry, settings

    def routes(self) -> list[Route]:
        """Generate."""
        return [Route("/v1/images/generations", self.generate, methods=["POST"])]

    async def generate(self, request: Request) -> Response:
        """Images as base64; what has no meaning here, such as `quality`, is passed over."""
        body = await body_of(request, self._settings.timeout_seconds)
        fields = await read_with(json_object, body)
        served = model_from_fields(self._registry, fields, "picture")
        request.scope["model"] = served.name
        prompt = required_text(fields, "prompt", MAX_PROMPT_CHARACTERS)
        choice(fields, "response_format", "b64_json", ("b64_json",))
        if fields.get("stream"):
            raise InvalidInput("`stream` must be false; `:draw` streams images.")
        file = choice(fields, "output_format", "png", FILES)
        side, output = _scale(served, fields)
        num = integer(fields, "n", 1, 1, min(MAX_IMAGES, self._settings.max_rows))
        seed = integer(fields, "seed", secrets.randbits(SEED_BITS), 0, MAX_SEED)
        batch = inputs(served, _condition(served, prompt), seed, range(num))
        drawn = await cancel_on_disconnect(
            request.receive, served.predict(batch, preferred_signature(served))
        )
        data = await asyncio.to_thread(_encoded, drawn[output], FILES[file])
        return json_response(_response(data, side, file))


def _response(data: list[str], side: int, file: str) -> dict[str, Any]:
    return {
        "created": int(time.time()),
        "data": [{"b64_json": encoded} for encoded in data],
        "output_format": file,
        "size": f"{side}x{side}",
        "background": "opaque",
    }


def _scale(served: ServedModel, fields: Fields) -> tuple[int, str]:
    """The side and the output that `size` asks for, by default the largest."""
    there = {f"{side}x{side}": (side, output) for side, output in scales(served)}
    size = choice(fields, "size", "auto", ("auto", *there))
    return scales(served)[-1] if size == "auto" else there[size]


def _condition(served: ServedModel, prompt: str) -> np.ndarray | None:
    needed = condition_input(served)
    if needed == "label":
        return np.array(label(served, "prompt", prompt), np.int32)
    if needed == "caption":
        return caption(prompt)
    if needed == "map":
        raise InvalidInput("`model` draws from a map of labels; `:draw` takes one.")
    return None


def _encoded(images: np.ndarray, container: str) -> list[str]:
    return [base64.b64encode(encode_image(image, container)).decode() for image in images]
