"""The route that draws images and streams them one by one, and checks of its requests."""

import asyncio
import base64
import collections
import contextlib
import io
import itertools
import logging
from collections.abc import AsyncGenerator
from typing import Annotated, Any

import numpy as np
import orjson
from msgspec import Meta, Struct
from PIL import Image
from starlette.requests import Request

from onepass.bundles.errors import Internal, InvalidInput, ServingError
from onepass.bundles.image_sampling import CONDITIONS, classes_of, condition_rows, image_inputs
from onepass.bundles.signature import IMAGE, Signature, fastest, scale_name
from pixelcnn.data.captions import MAX_CAPTION_CHARACTERS
from serving.engine.served_model import ServedModel
from serving.http.operations import Endpoints, post
from serving.http.request_bodies import Seed, invalid_field, json_model, json_tensor, read_body
from serving.http.responses import StreamedResponse


def signature(served: ServedModel) -> Signature:
    """Return the fastest signature that draws whole images."""
    return served.signatures[fastest(served.signatures)]


def condition_input(served: ServedModel) -> str | None:
    """Return the name of the condition's input, "label", "caption" or "map", or None."""
    return next((name for name in CONDITIONS if name in signature(served).inputs), None)


def scales(served: ServedModel) -> list[tuple[int, str]]:
    """Return the side and the output name of each scale, smallest first, up to the whole image."""
    outputs = signature(served).outputs
    whole = outputs[IMAGE].shape[1] or served.spec["size"]
    smaller = {name: info for name, info in outputs.items() if name.startswith(f"{IMAGE}_")}
    sides = [(info.shape[1] or whole, name) for name, info in smaller.items()]
    return [pair for pair in sorted(sides) if pair[0] != whole] + [(whole, IMAGE)]


def scale_signatures(served: ServedModel) -> list[str]:
    """Return the names of the signatures that draw an image scale by scale.

    Each except the first takes the previous scale as `start`. If the model has no such signatures,
    return only the name of the one that draws the whole image.
    """
    names = [scale_name(side) for side, _ in scales(served)]
    known = all(name in served.signatures for name in names)
    return names if known else [fastest(served.signatures)]


def number_of_images(field: str, num: int | None, most: int) -> int:
    """Return the number of images of a request, by default 1; raise InvalidInput above `most`."""
    if num is not None and num > most:
        raise invalid_field(field, f"an integer from 1 to {most}", num)
    return num or 1


def condition(
    served: ServedModel, given: dict[str, Any], field: str = "class"
) -> dict[str, np.ndarray]:
    """Return the input, by name, for an image's class, caption or map."""
    name = condition_input(served)
    needed = CONDITIONS.get(name or "")
    for other in given:
        if other != needed:
            needs = f"`{needed}`" if needed else "nothing"
            raise InvalidInput(f"`{other}` must not be given: the model needs {needs}.")
    if name is None or needed is None:
        return {}
    if needed not in given:
        raise InvalidInput(f"`{needed}` must be given{_examples(served, needed)}.")
    value, info = given[needed], signature(served).inputs[name]
    if name == "map":
        return {name: json_tensor(name, [value], info)}
    return condition_rows(name, [value], served.spec.get("classes") or [], info, field)


def _examples(served: ServedModel, needed: str) -> str:
    captions = served.spec.get("captions")
    if needed == "class":
        return f"; {classes_of(served.spec.get('classes') or [])}"
    return f", such as {captions[0]!r}" if needed == "caption" and captions else ""


def encode_image(image: np.ndarray, container: str = "PNG") -> bytes:
    """Encode an image uint8 [side, side, 1 or 3] as a PNG, JPEG or WEBP file."""
    memory = io.BytesIO()
    grey = image.shape[-1] == 1
    Image.fromarray(image[..., 0] if grey else image).save(memory, container)
    return memory.getvalue()


LOG = logging.getLogger(__name__)
MEDIA_TYPE = "application/x-ndjson"
Outputs = dict[str, np.ndarray]
ROWS = {"type": "array", "items": {"type": "integer"}, "minItems": 1}
Map = Annotated[Any, Meta(extra_json_schema={"type": "array", "items": ROWS, "minItems": 1})]


class DrawRequest(Struct, rename={"label": "class"}):
    """A request for images, with the condition that the model needs: class, caption or map."""

    label: str | int | None = None
    caption: Annotated[str, Meta(max_length=MAX_CAPTION_CHARACTERS)] | None = None
    map: Map = None
    seed: Seed = None
    num: Annotated[int, Meta(ge=1)] | None = None
    temperature: float | Annotated[list[float], Meta(min_length=1)] | None = None
    guidance: Annotated[float, Meta(ge=0)] | None = None


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
        heat = 1.0 if parsed.temperature is None else parsed.temperature
        known = signature(served).inputs
        rows = [
            image_inputs(known, parsed.seed or 0, [row], heat, parsed.guidance or 0.0, value)
            for row in range(num)
        ]
        return StreamedResponse(_lines(served, rows), MEDIA_TYPE, self._settings.timeout_seconds)


async def _lines(served: ServedModel, rows: list[Outputs]) -> AsyncGenerator[bytes, None]:
    started = False
    try:
        async with contextlib.aclosing(_image_scales(served, rows)) as images:
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


async def _image_scales(
    served: ServedModel, rows: list[Outputs]
) -> AsyncGenerator[tuple[int, np.ndarray, bool], None]:
    """Yield each image's index, the pixels of a scale, and whether that is the last scale.

    Images are yielded in order; up to as many as fit into a batch are drawn concurrently.
    """
    ahead = int(served.spec["serving"]["limits"]["max_batch"])
    in_progress: collections.deque[list[asyncio.Task]] = collections.deque()
    waiting = collections.deque(rows)
    try:
        for number in range(len(rows)):
            while waiting and len(in_progress) < ahead:
                in_progress.append(_start_scales(served, waiting.popleft()))
            for scale in in_progress[0]:
                yield number, await scale, scale is in_progress[0][-1]
            in_progress.popleft()
    finally:
        tasks = list(itertools.chain.from_iterable(in_progress))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _start_scales(served: ServedModel, inputs: Outputs) -> list[asyncio.Task]:
    tasks: list[asyncio.Task] = []
    for name in scale_signatures(served):
        work = _scale(served, inputs, name, tasks[-1] if tasks else None)
        tasks.append(asyncio.create_task(work))
    return tasks


async def _scale(
    served: ServedModel, inputs: Outputs, signature: str, smaller: asyncio.Task | None
) -> np.ndarray:
    start = {} if smaller is None else {"start": (await smaller)[np.newaxis]}
    return (await served.predict(inputs | start, signature))["picture"][0]


def _line(number: int, image: np.ndarray, last: bool) -> bytes:
    png = base64.b64encode(encode_image(image)).decode()
    line = {"picture": number, "side": image.shape[0], "last": last, "png": png}
    return orjson.dumps(line) + b"\n"
