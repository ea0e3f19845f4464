"""Work is cancelled when its client disconnects."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from serving.errors import Cancelled

Result = TypeVar("Result")


async def wait_for_disconnect(receive: Receive) -> None:
    """Returns when the client has disconnected; the body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def cancel_on_disconnect(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of the work; Cancelled, and so is the work, if the client disconnects first."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(wait_for_disconnect(receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise Cancelled("The client disconnected.")
    finally:
        watch.cancel()
        if not task.done():
            await _cancelled(task)


async def _cancelled(task: asyncio.Future) -> None:
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()
