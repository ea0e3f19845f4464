"""Requests side by side become one call: a bounded queue, rows of equal shape together."""

import asyncio
import collections
import dataclasses
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from serving.engine.padding import Arrays, Fitted, Padding
from serving.errors import (
    Cancelled,
    DeadlineExceeded,
    Internal,
    NotReady,
    Overloaded,
    ServingError,
    TooLarge,
)
from serving.observability.logs import request_id

LOG = logging.getLogger(__name__)
MAX_RETRY_SECONDS = 60.0
LARGE_BYTES = 2**20  # what is copied in a thread, so that others need not wait for it

Call = Callable[[str, Arrays], Arrays]


@dataclasses.dataclass(frozen=True)
class Limits:
    """How much of one model may wait or run.

    rows, bytes: of inputs that wait. request_rows: of one request. delay_seconds: that a batch is
    held back for requests that are likely to come. threads: calls at the same time.
    """

    rows: int = 256
    bytes: int = 2**28
    request_rows: int = 64
    delay_seconds: float = 0.001
    threads: int = 1


class BatchObserver:
    """Called by a batcher for its metrics; does nothing here."""

    def rows_queued(self, rows: int) -> None:
        """Rows join (positive) or leave (negative) the queue."""

    def call_started(self) -> None:
        """A call begins."""

    def call_finished(self, rows: int, seconds: float) -> None:
        """A call ends."""

    def batch_retried(self) -> None:
        """A failed batch is retried row by row."""


@dataclasses.dataclass(eq=False)
class _Request:
    """Inputs on their way: rows that wait or run, and the answer they make together."""

    signature: str
    fitted: Fitted
    answer: asyncio.Future
    arrived: float
    id: str
    results: list[Arrays | None]

    @property
    def missing(self) -> int:
        return sum(result is None for result in self.results)

    @property
    def bytes_per_row(self) -> int:
        return sum(array.nbytes for array in self.fitted.inputs.values()) // len(self.results)

    @property
    def result_bytes(self) -> int:
        return sum(array.nbytes for row in self.results if row for array in row.values())


@dataclasses.dataclass(eq=False)
class _Row:
    request: _Request
    number: int

    def inputs(self) -> Arrays:
        return {name: array[self.number] for name, array in self.request.fitted.inputs.items()}


class Batcher:
    """Collects the rows of requests into calls.

    A lone request is called at once. When requests come side by side, those that come during a call
    share the next one, and after a call that several shared the next is held back a moment for
    them to come again.

    Args:
      call: (signature, inputs) -> outputs; it runs in a thread.
      padding: of the model.
      limits, watch: see there.
    """

    def __init__(
        self,
        call: Call,
        padding: Padding,
        limits: Limits,
        observer: BatchObserver,
        name: str = "model",
    ):
        self._call, self._padding, self._limits, self._observer = call, padding, limits, observer
        self._pool = ThreadPoolExecutor(limits.threads, thread_name_prefix=f"call-{name}")
        self._queues: dict[tuple, collections.deque[_Row]] = {}
        self._waiting_rows = self._waiting_bytes = self.running = 0
        self._expected_requests, self._delay_until = 1, 0.0
        self._seconds_per_call = 0.0
        self._closed = False

    async def submit(
        self, signature: str, inputs: Arrays, timeout_seconds: float | None = None
    ) -> Arrays:
        """The outputs for checked inputs.

        Raises TooLarge, Overloaded, DeadlineExceeded, or whatever ServingError the call ended in.
        Rows of a cancelled request that still wait never reach the call.
        """
        request = self._enqueued(signature, self._padding.fit(signature, inputs))
        self._dispatch()
        try:
            async with asyncio.timeout(timeout_seconds):
                await request.answer
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"No answer within {timeout_seconds:g} seconds; {self._waiting_rows} rows wait."
            ) from error
        finally:
            self._remove_waiting(request)
        if request.result_bytes > LARGE_BYTES:
            return await asyncio.to_thread(self._assembled, request)
        return self._assembled(request)

    def close(self) -> None:
        """Answers what waits with NotReady, and everything that comes after."""
        self._closed = True
        for row in [row for queue in self._queues.values() for row in queue]:
            _fail(row.request, NotReady("The server is stopping."))

    def _enqueued(self, signature: str, fitted: Fitted) -> _Request:
        """The request, its rows in the queue."""
        loop, limits = asyncio.get_running_loop(), self._limits
        rows = len(next(iter(fitted.inputs.values())))
        most = min(limits.rows, limits.request_rows)
        if rows > most:
            raise TooLarge(f"The batch must have at most {most} rows, got {rows}.")
        request = _Request(
            signature, fitted, loop.create_future(), loop.time(), request_id(), [None] * rows
        )
        size = request.bytes_per_row * rows
        if size > limits.bytes:
            raise TooLarge(f"The inputs must have at most {limits.bytes:,} bytes, got {size:,}.")
        if self._closed:
            raise NotReady("The server is stopping.")
        if self._waiting_rows + rows > limits.rows or self._waiting_bytes + size > limits.bytes:
            raise Overloaded(f"{self._waiting_rows} rows wait already.", self._retry_seconds())
        queue = self._queues.setdefault(fitted.key, collections.deque())
        queue.extend(_Row(request, number) for number in range(rows))
        self._count(request, rows)
        return request

    def _count(self, request: _Request, rows: int) -> None:
        self._waiting_rows += rows
        self._waiting_bytes += rows * request.bytes_per_row
        self._observer.rows_queued(rows)

    def _retry_seconds(self) -> float:
        calls = self._waiting_rows / self._padding.max_batch / self._limits.threads
        return min(max(1.0, calls * self._seconds_per_call), MAX_RETRY_SECONDS)

    def _remove_waiting(self, request: _Request) -> None:
        """Takes the rows that still wait out of the queue."""
        request.answer.cancel()
        queue = self._queues.get(request.fitted.key)
        if queue is None:
            return
        left = collections.deque(row for row in queue if row.request is not request)
        self._count(request, len(left) - len(queue))
        self._set_queue(request.fitted.key, left)

    def _set_queue(self, key: tuple, queue: collections.deque[_Row]) -> None:
        if queue:
            self._queues[key] = queue
        else:
            self._queues.pop(key, None)

    def _dispatch(self) -> None:
        """Starts as many calls as there are threads for."""
        loop = asyncio.get_running_loop()
        while self._queues and self.running < self._limits.threads:
            key = min(self._queues, key=lambda key: self._queues[key][0].request.arrived)
            wait_seconds = self._delay_until - loop.time()
            if wait_seconds > 0 and not self._is_worth_a_call(self._queues[key]):
                loop.call_later(wait_seconds, self._dispatch)
                return
            rows = self._next_batch(key)
            self.running += 1
            loop.create_task(self._run(rows)).add_done_callback(self._batch_done)

    def _is_worth_a_call(self, queue: collections.deque[_Row]) -> bool:
        requests = len({id(row.request) for row in queue})
        return requests >= self._expected_requests or len(queue) >= self._padding.max_batch

    def _next_batch(self, key: tuple) -> list[_Row]:
        """The rows of the next call, from the front of a queue."""
        queue = self._queues[key]
        self._expected_requests = len({id(row.request) for row in queue})
        rows = [queue.popleft() for _ in range(min(len(queue), self._padding.size(len(queue))))]
        for row in rows:
            self._count(row.request, -1)
        self._set_queue(key, queue)
        return rows

    async def _run(self, rows: list[_Row]) -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()
        self._observer.call_started()
        results = await loop.run_in_executor(self._pool, self._outputs, rows)
        seconds = loop.time() - start
        self._seconds_per_call += 0.2 * (seconds - self._seconds_per_call)
        self._observer.call_finished(len(rows), seconds)
        for row, result in zip(rows, results, strict=True):
            if isinstance(result, ServingError):
                _fail(row.request, result)
            else:
                row.request.results[row.number] = result
                if not row.request.missing and not row.request.answer.done():
                    row.request.answer.set_result(None)

    def _batch_done(self, task: asyncio.Task) -> None:
        self.running -= 1
        self._delay_until = asyncio.get_running_loop().time() + self._limits.delay_seconds
        if not task.cancelled() and task.exception():
            LOG.error("a batch was lost", exc_info=task.exception())
        self._dispatch()

    def _outputs(self, rows: list[_Row]) -> list[Arrays | ServingError]:
        """The outputs of each row; in a thread."""
        request = rows[0].request
        try:
            size = self._padding.size(len(rows))
            inputs = [row.inputs() for row in rows]
            batch = self._padding.stack(inputs, request.fitted.lengths, size)
            outputs = self._call(request.signature, batch)
            return [{name: array[n] for name, array in outputs.items()} for n in range(len(rows))]
        except Exception as error:
            if len(rows) == 1:
                return [_failure(error, request.id)]
            self._observer.batch_retried()
            failed: dict[int, ServingError] = {}
            return [self._retry_row(row, failed) for row in rows]

    def _retry_row(self, row: _Row, failed: dict[int, ServingError]) -> Arrays | ServingError:
        """The outputs of a row of a failed batch, in a call of its own.

        failed: by the `id` of requests one of whose rows has failed already; the others need not.
        """
        if row.request.answer.done():
            return Cancelled("The request was cancelled.")
        if id(row.request) not in failed:
            result = self._outputs([row])[0]
            if not isinstance(result, ServingError):
                return result
            failed[id(row.request)] = result
        return failed[id(row.request)]

    def _assembled(self, request: _Request) -> Arrays:
        """The answer made of its rows."""
        results = [result for result in request.results if result is not None]
        outputs = {name: np.stack([result[name] for result in results]) for name in results[0]}
        return self._padding.crop(outputs)


def _fail(request: _Request, error: ServingError) -> None:
    if not request.answer.done():
        request.answer.set_exception(error)


def _failure(error: Exception, identity: str) -> ServingError:
    if isinstance(error, ServingError):
        return error
    LOG.error("a call failed", exc_info=error, extra={"request": identity})
    return Internal()
