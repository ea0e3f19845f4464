"""Answers that are sent while they are made."""

import asyncio
from collections.abc import AsyncGenerator, Mapping

from starlette.types import Receive, Scope, Send

from serving.errors import DeadlineExceeded
from serving.http.disconnects import cancel_on_disconnect


class StreamedResponse:
    """An ASGI answer of chunks of bytes, each sent at once.

    Nothing is sent before the first chunk is there, so what fails until then has its own status.
    A client that leaves, or that reads nothing for `stall_seconds`, closes the chunks.
    """

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        media_type: str,
        stall_seconds: float,
        headers: Mapping[str, str] | None = None,
    ):
        self._chunks, self._stall_seconds = chunks, stall_seconds
        # The proxy in front, if it is nginx, shall pass on what comes as it comes.
        named = {"content-type": media_type, "x-accel-buffering": "no", **(headers or {})}
        self._headers = [(name.encode(), value.encode()) for name, value in named.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the chunks."""
        await cancel_on_disconnect(receive, self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        started = False
        try:
            async for chunk in self._chunks:
                if not started:
                    await send(
                        {"type": "http.response.start", "status": 200, "headers": self._headers}
                    )
                    started = True
                await self._send(send, chunk)
        finally:
            await self._chunks.aclose()
        if not started:
            await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, chunk: bytes) -> None:
        try:
            async with asyncio.timeout(self._stall_seconds):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except TimeoutError as error:
            raise DeadlineExceeded("The client does not read.") from error
