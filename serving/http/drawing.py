"""Our own route of pictures: they come one by one, each scale by scale."""

import asyncio
import base64
import collections
import contextlib
from collections.abc import AsyncGenerator

import numpy as np
import orjson
from starlette.requests import Request
from starlette.routing import Route

from serving.errors import ServingError
from serving.http.bodies import body_of
from serving.http.fields import MAX_SEED, integer, json_object
from serving.http.names import fastest, of_kind, served_at
from serving.http.picture_inputs import CONDITIONS, condition, file_of, inputs, scales
from serving.http.streaming import StreamedAnswer
from serving.models import Served, Table
from serving.settings import Settings

MEDIA_TYPE = "application/x-ndjson"
Outputs = dict[str, np.ndarray]


class Drawing:
    """The endpoint, over a table of models."""

    def __init__(self, table: Table, settings: Settings):
        self._table, self._settings = table, settings

    def routes(self) -> list[Route]:
        """Draw."""
        return [Route("/v1/models/{name:name}:draw", self.draw, methods=["POST"])]

    async def draw(self, request: Request) -> StreamedAnswer:
        """Streams pictures as lines of JSON, a line a scale."""
        served = of_kind(served_at(self._table, request), "picture")
        body = await body_of(request, self._settings.timeout_seconds)
        fields = json_object(body)
        wishes = {n: fields[n] for n in CONDITIONS.values() if fields.get(n) is not None}
        wished = condition(served, wishes)
        seed = integer(fields, "seed", 0, 0, MAX_SEED)
        num = integer(fields, "num", 1, 1, self._settings.max_rows)
        rows = [
            inputs(served, wished, seed, range(n, n + 1), fields.get("temperature"))
            for n in range(num)
        ]
        return StreamedAnswer(_lines(served, rows), MEDIA_TYPE, self._settings.timeout_seconds)


async def _lines(served: Served, rows: list[Outputs]) -> AsyncGenerator[bytes, None]:
    """A line for every scale of every picture; an error after the first is a line of its own."""
    begun = False
    try:
        async with contextlib.aclosing(_pictures(served, rows)) as pictures:
            async for number, outputs in pictures:
                yield await asyncio.to_thread(_scale_lines, served, number, outputs)
                begun = True
    except ServingError as error:
        if not begun:
            raise
        yield orjson.dumps({"error": error.message}) + b"\n"


async def _pictures(
    served: Served, rows: list[Outputs]
) -> AsyncGenerator[tuple[int, Outputs], None]:
    """The pictures in order, with as many under way as a batch may hold."""
    ahead = int(served.spec["serving"]["limits"]["max_batch"])
    tasks: collections.deque[asyncio.Task] = collections.deque()
    waiting = collections.deque(rows)
    try:
        for number in range(len(rows)):
            while waiting and len(tasks) < ahead:
                work = served.predict(waiting.popleft(), fastest(served))
                tasks.append(asyncio.create_task(work))
            yield number, await tasks[0]
            tasks.popleft()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _scale_lines(served: Served, number: int, outputs: Outputs) -> bytes:
    lines = []
    of_picture = scales(served)
    for place, (side, name) in enumerate(of_picture):
        line = {
            "picture": number,
            "side": side,
            "last": place == len(of_picture) - 1,
            "png": base64.b64encode(file_of(outputs[name][0])).decode(),
        }
        lines.append(orjson.dumps(line) + b"\n")
    return b"".join(lines)
