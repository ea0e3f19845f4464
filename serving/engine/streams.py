"""Streams of chunks, each computed in a thread, only a few chunks ahead of the reader."""

import asyncio
import contextlib
import functools
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from typing import Any, Generic, TypeVar

from onepass.bundles.errors import (
    DeadlineExceeded,
    Internal,
    InvalidInput,
    Overloaded,
    ServingError,
)
from onepass.foundation.errors import UserError
from serving.engine.fair_shares import PROCESSORS, ClientSlots, Use, current_client
from serving.observability import request_id

LOG = logging.getLogger(__name__)
LOOKAHEAD = 2  # chunks computed before they are requested
STREAM_TIMEOUT_FACTOR = 10  # time limit of a stream, relative to the limit of a chunk

Chunk = TypeVar("Chunk")


class Streams:
    """A limited number of streams, shared among clients by the rule of `ClientSlots`.

    `seconds` limit computing a chunk, and reading it; `changed` is called with +1 and -1 for each.
    """

    def __init__(self, most: int, seconds: float, changed: Callable[[int], None] = lambda n: None):
        self._client_slots, self._seconds, self._changed = ClientSlots(most), seconds, changed

    @property
    def running(self) -> int:
        """Number of open streams."""
        return self._client_slots.taken

    async def stream(
        self, make: Callable[[], Iterator[Chunk]], timeout_seconds: float | None = None
    ) -> AsyncGenerator[Chunk, None]:
        """Yield the chunks of an iterator, which `make` returns in the stream's own thread.

        Closing the generator stops the work after the current chunk. The default time limit of the
        whole stream is STREAM_TIMEOUT_FACTOR times the limit of a chunk.

        Raises:
          Overloaded: there are too many streams.
          DeadlineExceeded: a chunk, the reader or the whole stream takes too long.
          InvalidInput: the iterator raised UserError.
          Internal: the iterator raised an error other than UserError and ServingError.
        """
        if timeout_seconds is None:
            timeout_seconds = STREAM_TIMEOUT_FACTOR * self._seconds
        client = current_client()
        if not self._client_slots.has_one_for(client):
            own = self._client_slots.taken_by(client)
            yours = f", {own} of them yours" if own else ""
            raise Overloaded(f"{self.running} streams are open already{yours}.")
        work = _StreamThread(
            make, self._seconds, client, functools.partial(self._end_stream, client)
        )
        self._client_slots.take(client)
        self._changed(1)
        work.start()
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_seconds
        try:
            while (chunk := await work.next(min(end, loop.time() + self._seconds))) is not _END:
                yield chunk
        finally:
            work.stop()

    def _end_stream(self, client: str) -> None:
        self._client_slots.leave(client)
        self._changed(-1)


_END = object()  # marks the end of a stream


class _StreamThread(Generic[Chunk]):
    def __init__(
        self,
        make: Callable[[], Iterator[Chunk]],
        reader_seconds: float,
        client: str,
        ended: Callable[[], None],
    ):
        self._make, self._reader_seconds, self._ended = make, reader_seconds, ended
        self._client, self._use = client, Use()
        self._loop = asyncio.get_running_loop()
        self._chunks: asyncio.Queue[Any] = asyncio.Queue()
        self._slots = threading.Semaphore(LOOKAHEAD)
        self._stopped = threading.Event()
        self._request = request_id()

    def start(self) -> None:
        """Start a daemon thread, so hanging work does not keep the process alive."""
        threading.Thread(target=self._run, name="stream", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        self._slots.release()

    async def next(self, end: float) -> Any:
        """Return the next chunk or _END, or raise the thread's error, or DeadlineExceeded."""
        try:
            async with asyncio.timeout_at(end):
                chunk = await self._chunks.get()
        except TimeoutError as error:
            raise DeadlineExceeded("The stream did not end in time.") from error
        if isinstance(chunk, ServingError):
            raise chunk
        self._slots.release()
        return chunk

    def _run(self) -> None:
        last: Any = _END
        try:
            with contextlib.ExitStack() as stack:
                iterator = self._make()
                if isinstance(iterator, Generator):
                    stack.callback(iterator.close)
                while self._slots.acquire(timeout=self._reader_seconds):
                    if self._stopped.is_set():
                        break
                    with PROCESSORS.permit(self._client, self._use):
                        chunk = next(iterator, _END)
                    if chunk is _END:
                        break
                    self._call_in_loop(self._chunks.put_nowait, chunk)
                else:
                    raise DeadlineExceeded("The client does not read the stream.")
        except ServingError as error:
            last = error
        except UserError as error:
            last = InvalidInput(str(error))
        except Exception as error:
            LOG.error("a stream failed", exc_info=error, extra={"request": self._request})
            last = Internal()
        self._call_in_loop(self._chunks.put_nowait, last)
        self._call_in_loop(self._ended)

    def _call_in_loop(self, function: Callable[..., Any], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed and has no reader
            self._loop.call_soon_threadsafe(function, *arguments)
