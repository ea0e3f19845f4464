"""OpenAI's `POST /v1/images/generations`: the prompt is a class (name or index) or a caption."""

import asyncio
import base64
import secrets
import time
from typing import Annotated, Literal, TypedDict

import numpy as np
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from onepass.bundles.errors import InvalidInput
from onepass.bundles.image_inputs import CONDITIONS, image_inputs
from onepass.bundles.signature import fastest
from serving.engine.served_model import ServedModel
from serving.http.fields import Name, Seed, invalid_field, json_model
from serving.http.image_requests import (
    condition,
    condition_input,
    encode_image,
    number_of_images,
    scales,
    signature,
)
from serving.http.operations import Endpoints, post
from serving.http.request_bodies import read_body
from serving.http.responses import cancel_on_disconnect, json_response

MAX_IMAGES = 10  # OpenAI's limit
FILES = {"png": "PNG", "jpeg": "JPEG", "webp": "WEBP"}
SEED_BITS = 64


class ImagesRequest(Struct):
    """A request for images; fields that do not apply here, such as `quality`, are ignored."""

    prompt: Annotated[str, Meta(min_length=1, max_length=4000, pattern=r"\S")]
    model: Name | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_IMAGES)] | None = None
    size: str | None = None
    response_format: Literal["b64_json"] | None = None
    output_format: Literal["png", "jpeg", "webp"] | None = None
    seed: Seed = None
    stream: bool | None = None


class EncodedImage(TypedDict):
    """An image file in base64."""

    b64_json: str


class GeneratedImages(TypedDict):
    """The response: images with their time of creation, format and size."""

    created: int
    data: list[EncodedImage]
    output_format: str
    size: str
    background: str


class OpenaiImages(Endpoints):
    """The endpoint for images."""

    @post("/v1/images/generations", GeneratedImages, ImagesRequest)
    async def generate(self, request: Request) -> Response:
        """Draw images and return them as base64."""
        parsed = await read_body(request, json_model, ImagesRequest)
        served = self._model_named(request, parsed.model, "picture")
        if parsed.stream:
            raise InvalidInput("`stream` must be false; `:draw` streams images.")
        file = parsed.output_format or "png"
        side, output = _scale(served, parsed.size or "auto")
        num = number_of_images("n", parsed.n, self._settings.max_rows)
        seed = secrets.randbits(SEED_BITS) if parsed.seed is None else parsed.seed
        needed = condition_input(served)
        if needed == "map":
            raise InvalidInput("`model` needs a map of labels; use `:draw`.")
        prompt = {} if needed is None else {CONDITIONS[needed]: parsed.prompt}
        given = condition(served, prompt, "prompt")
        batch = image_inputs(signature(served).inputs, seed, range(num), condition=given)
        drawn = await cancel_on_disconnect(
            request.receive, served.predict(batch, fastest(served.signatures))
        )
        data = await asyncio.to_thread(_encode_images, drawn[output], FILES[file])
        return json_response(
            GeneratedImages(
                created=int(time.time()),
                data=[EncodedImage(b64_json=encoded) for encoded in data],
                output_format=file,
                size=f"{side}x{side}",
                background="opaque",
            )
        )


def _scale(served: ServedModel, size: str) -> tuple[int, str]:
    sizes = {f"{side}x{side}": (side, output) for side, output in scales(served)}
    sizes["auto"] = scales(served)[-1]
    if size not in sizes:
        raise invalid_field("size", f"one of {', '.join(sizes)}", size)
    return sizes[size]


def _encode_images(images: np.ndarray, container: str) -> list[str]:
    return [base64.b64encode(encode_image(image, container)).decode() for image in images]
