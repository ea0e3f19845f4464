"""The route that draws images and streams them one by one, and what it shares with OpenAI's."""

import asyncio
import base64
import contextlib
import logging
from collections.abc import AsyncGenerator
from typing import Annotated, Any

import numpy as np
import orjson
from pydantic import Field, WithJsonSchema
from starlette.requests import Request

from onepass.bundles.errors import Internal, ServingError
from onepass.bundles.image_sampling import image_inputs
from pixelcnn.data.captions import MAX_CAPTION_CHARACTERS
from serving.engine.drawing import Outputs, condition, encode_image, image_scales, signature
from serving.engine.fields import Fields, Seed, invalid_field
from serving.engine.served_model import ServedModel
from serving.http.operations import Endpoints, post
from serving.http.request_bodies import json_model, read_body
from serving.http.responses import StreamedResponse

LOG = logging.getLogger(__name__)
MEDIA_TYPE = "application/x-ndjson"
ROWS = {"type": "array", "items": {"type": "integer"}, "minItems": 1}
Map = Annotated[Any, WithJsonSchema({"type": "array", "items": ROWS, "minItems": 1})]


class DrawRequest(Fields):
    """A request for images, with the condition that the model needs: class, caption or map."""

    label: str | int | None = Field(None, alias="class")
    caption: Annotated[str, Field(max_length=MAX_CAPTION_CHARACTERS)] | None = None
    map: Map = None
    seed: Seed | None = None
    num: Annotated[int, Field(ge=1)] | None = None
    temperature: float | Annotated[list[float], Field(min_length=1, fail_fast=True)] | None = None
    guidance: Annotated[float, Field(ge=0)] | None = None


class DrawRoute(Endpoints):
    """The endpoint for drawing images."""

    @post("/v1/models/{name}:draw", {MEDIA_TYPE: str}, DrawRequest)
    async def draw(self, request: Request) -> StreamedResponse:
        """Stream images as lines of JSON, one line per scale."""
        served = self._model_at(request, "picture")
        parsed = await read_body(request, json_model, DrawRequest)
        given = {"class": parsed.label, "caption": parsed.caption, "map": parsed.map}
        value = condition(served, {n: v for n, v in given.items() if v is not None})
        num = number_of_images("num", parsed.num, self._settings.max_rows)
        known, heat = signature(served).inputs, parsed.temperature
        heat = 1.0 if heat is None else heat
        rows = [
            image_inputs(known, parsed.seed or 0, [row], heat, parsed.guidance or 0.0, value)
            for row in range(num)
        ]
        return StreamedResponse(_lines(served, rows), MEDIA_TYPE, self._settings.timeout_seconds)


def number_of_images(field: str, num: int | None, most: int) -> int:
    """Return the number of images of a request, by default 1; raise InvalidInput above `most`."""
    if num is not None and num > most:
        raise invalid_field(field, f"an integer from 1 to {most}", num)
    return num or 1


async def _lines(served: ServedModel, rows: list[Outputs]) -> AsyncGenerator[bytes, None]:
    started = False
    try:
        async with contextlib.aclosing(image_scales(served, rows)) as images:
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
    png = base64.b64encode(encode_image(image)).decode()
    return orjson.dumps({"picture": number, "side": len(image), "last": last, "png": png}) + b"\n"
