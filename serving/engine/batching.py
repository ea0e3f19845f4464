"""Batching of concurrent requests: a bounded queue with deadlines, in turns, and past durations."""

import asyncio
import collections
import dataclasses
import functools
import logging
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

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
from serving.observability.metrics import Metrics
from serving.settings import Settings

REMEMBERED = 8  # calls per kind
MAX_KINDS = 256
MAX_STEP = 8.0  # ratio of costs up to which a kind is estimated from another
LOG = logging.getLogger(__name__)
MAX_RETRY_SECONDS = 60.0
LARGE_BYTES = 2**20  # above which outputs are copied in a thread
CALL_SECONDS = 1.0  # target for a call of several rows, since others wait for it
Call = Callable[[str, Arrays], Arrays]


class CallTimes:
    """Seconds per row by the kind of call: its signature and shapes.

    The estimate is the minimum of the last calls, so that only hopeless requests are refused. A
    kind that was called once counts as unknown: that call may have compiled, and its time would
    refuse the calls that show how fast the kind is.
    """

    def __init__(self) -> None:
        self._seconds: collections.OrderedDict[Hashable, tuple[str, float, collections.deque]] = (
            collections.OrderedDict()
        )

    def note(self, kind: Hashable, signature: str, cost: float, seconds_per_row: float) -> None:
        """Record the seconds per row of a call, and the cost of one of its rows."""
        self._seconds.setdefault(kind, (signature, cost, collections.deque(maxlen=REMEMBERED)))
        self._seconds.move_to_end(kind)
        self._seconds[kind][2].append(seconds_per_row)
        if len(self._seconds) > MAX_KINDS:
            self._seconds.popitem(last=False)

    def seconds_per_row(self, kind: Hashable, signature: str, cost: float) -> float:
        """Return the estimate for a kind; 0.0 if it is unknown.

        A kind that was never called is estimated from the next cheaper one, in proportion to their
        costs.
        """
        called = {known: each for known, each in self._seconds.items() if len(each[2]) > 1}
        if kind in self._seconds:
            return min(called[kind][2]) if kind in called else 0.0
        smaller = [
            (known, min(seconds))
            for name, known, seconds in called.values()
            if name == signature and known <= cost <= MAX_STEP * known
        ]
        known, seconds = max(smaller, default=(1.0, 0.0))
        return seconds * cost / known


@dataclasses.dataclass(eq=False)
class _Request:
    """A request: its inputs, its waiting rows, and the future of its outputs."""

    signature: str
    fitted: Fitted
    answer: asyncio.Future
    arrived: float
    id: str
    results: list[Arrays | None]
    waiting: collections.deque[int]
    row_seconds: float

    @property
    def missing(self) -> int:
        return sum(result is None for result in self.results)

    @property
    def bytes_per_row(self) -> int:
        return sum(array.nbytes for array in self.fitted.inputs.values()) // len(self.results)

    @property
    def result_bytes(self) -> int:
        return sum(array.nbytes for row in self.results if row for array in row.values())

    @property
    def seconds(self) -> float:
        """Estimated seconds for the waiting rows."""
        return len(self.waiting) * self.row_seconds

    @property
    def is_long(self) -> bool:
        """True if one row alone takes longer than other requests should wait."""
        return self.row_seconds > CALL_SECONDS


class _Row(NamedTuple):
    request: _Request
    number: int

    def inputs(self) -> Arrays:
        return {name: array[self.number] for name, array in self.request.fitted.inputs.items()}


class Batcher:
    """Batches of the rows of concurrent requests.

    A lone request is called at once. Requests that arrive during a call share the next one; after a
    shared call, the next one is delayed a moment so that more requests can join it. Requests take
    turns: one whose rows do not all fit into a call moves to the end of the queue. A call takes at
    most CALL_SECONDS, so that other requests run between the calls of a large one, and slower rows
    have a thread of their own. The limits are the server's: rows and bytes that may wait, rows of
    a request, threads.
    """

    def __init__(
        self,
        call: Call,
        padding: Padding,
        limits: Settings,
        metrics: Metrics,
        name: str = "model",
    ):
        self._call, self._padding, self._limits = call, padding, limits
        self._metrics, self._name = metrics, name
        self._pool = ThreadPoolExecutor(limits.threads + 1, thread_name_prefix=f"call-{name}")
        self._waiting: dict[_Request, None] = {}
        self._waiting_rows = self._waiting_bytes = self.running = self._running_long = 0
        self._expected_requests, self._delay_until = 1, 0.0
        self._times = CallTimes()
        self._closed = False

    async def submit(
        self, signature: str, inputs: Arrays, timeout_seconds: float | None = None
    ) -> Arrays:
        """Return the outputs for checked inputs.

        Waiting rows of a cancelled request are never called.

        Raises:
          ServingError: TooLarge, Overloaded, DeadlineExceeded, or the error of the call.
        """
        request = self._enqueued(signature, self._padding.fit(signature, inputs), timeout_seconds)
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
        """Answer waiting and later requests with NotReady."""
        self._closed = True
        for request in self._waiting:
            _fail(request, NotReady("The server is stopping."))

    def _enqueued(
        self, signature: str, fitted: Fitted, timeout_seconds: float | None = None
    ) -> _Request:
        loop, limits = asyncio.get_running_loop(), self._limits
        rows = len(next(iter(fitted.inputs.values())))
        most = min(limits.queue_rows, limits.max_rows)
        if rows > most:
            raise TooLarge(f"The batch must have at most {most} rows, got {rows}.")
        request = _Request(
            signature,
            fitted,
            loop.create_future(),
            loop.time(),
            request_id(),
            [None] * rows,
            collections.deque(range(rows)),
            self._times.seconds_per_row(fitted.key, signature, fitted.cost),
        )
        size = request.bytes_per_row * rows
        if size > limits.queue_bytes:
            raise TooLarge(
                f"The inputs must have at most {limits.queue_bytes:,} bytes, got {size:,}."
            )
        if self._closed:
            raise NotReady("The server is stopping.")
        if (
            self._waiting_rows + rows > limits.queue_rows
            or self._waiting_bytes + size > limits.queue_bytes
        ):
            wait = sum(waiting.seconds for waiting in self._waiting) / limits.threads
            raise Overloaded(
                f"The queue is full: {self._waiting_rows} rows wait.",
                min(max(1.0, wait), MAX_RETRY_SECONDS),
            )
        if timeout_seconds is not None:
            self._check_time(request, timeout_seconds)
        self._waiting[request] = None
        self._count(request, rows)
        return request

    def _check_time(self, request: _Request, seconds: float) -> None:
        """Raise TooLarge or Overloaded if even the fastest calls so far would end too late."""
        threads = 1 if request.is_long else self._limits.threads
        alone = request.seconds / threads
        if alone > seconds:
            raise TooLarge(
                f"The request would take about {alone:.0f} seconds, with a limit of {seconds:.3g}: "
                "ask for fewer rows, shorter ones, or a stream."
            )
        rivals = [other for other in self._waiting if other.is_long == request.is_long]
        # Requests take turns: before this one ends, each other one gets at most as much time.
        others = sum(min(other.seconds, request.seconds) for other in rivals)
        needed = (request.seconds + others) / threads
        if needed > seconds:
            raise Overloaded(
                f"The queue takes about {needed:.0f} seconds, with a limit of {seconds:.3g}.",
                min(needed - seconds + 1.0, MAX_RETRY_SECONDS),
            )

    def _count(self, request: _Request, rows: int) -> None:
        self._waiting_rows += rows
        self._waiting_bytes += rows * request.bytes_per_row
        self._metrics.queue_rows.labels(self._name).inc(rows)

    def _remove_waiting(self, request: _Request) -> None:
        request.answer.cancel()
        self._count(request, -len(request.waiting))
        request.waiting.clear()
        self._waiting.pop(request, None)

    def _dispatch(self) -> None:
        loop = asyncio.get_running_loop()
        while (request := self._next_request()) is not None:
            wait_seconds = self._delay_until - loop.time()
            if wait_seconds > 0 and not self._is_worth_a_call(request):
                loop.call_later(wait_seconds, self._dispatch)
                return
            rows = self._next_batch(request)
            self.running += 1
            self._running_long += request.is_long
            done = functools.partial(self._batch_done, is_long=request.is_long)
            loop.create_task(self._run(rows)).add_done_callback(done)

    def _next_request(self) -> _Request | None:
        """Return the first request that a thread is free for."""
        has_short = self.running - self._running_long < self._limits.threads
        able = (
            request
            for request in self._waiting
            if (not self._running_long if request.is_long else has_short)
        )
        return next(able, None)

    def _alike(self, request: _Request) -> list[_Request]:
        """Return the requests that can share a call with this one, itself included."""
        return [other for other in self._waiting if other.fitted.key == request.fitted.key]

    def _is_worth_a_call(self, request: _Request) -> bool:
        alike = self._alike(request)
        rows = sum(len(other.waiting) for other in alike)
        return len(alike) >= self._expected_requests or rows >= self._padding.max_batch

    def _next_batch(self, first: _Request) -> list[_Row]:
        """Take the rows of the next call from the queue, as many as take CALL_SECONDS."""
        alike = self._alike(first)
        self._expected_requests = len(alike)
        count = sum(len(request.waiting) for request in alike)
        if first.row_seconds:
            count = min(count, max(1, int(CALL_SECONDS / first.row_seconds)))
        count = min(count, self._padding.size(count))
        rows: list[_Row] = []
        for request in alike:
            taken = min(len(request.waiting), count - len(rows))
            if not taken:
                break
            rows += [_Row(request, request.waiting.popleft()) for _ in range(taken)]
            self._count(request, -taken)
            del self._waiting[request]
            if request.waiting:
                self._waiting[request] = None  # to the end of the queue
        return rows

    async def _run(self, rows: list[_Row]) -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()
        for row in rows:
            self._metrics.queue_seconds.labels(self._name).observe(start - row.request.arrived)
        self._metrics.running.labels(self._name).inc()
        results = await loop.run_in_executor(self._pool, self._outputs, rows)
        seconds, first = loop.time() - start, rows[0].request
        size = max(len(rows), self._padding.size(len(rows)))
        self._times.note(first.fitted.key, first.signature, first.fitted.cost, seconds / size)
        self._metrics.running.labels(self._name).dec()
        self._metrics.batch_rows.labels(self._name).observe(len(rows))
        self._metrics.call_seconds.labels(self._name).observe(seconds)
        for row, result in zip(rows, results, strict=True):
            if isinstance(result, ServingError):
                _fail(row.request, result)
            else:
                row.request.results[row.number] = result
                if not row.request.missing and not row.request.answer.done():
                    row.request.answer.set_result(None)

    def _batch_done(self, task: asyncio.Task, is_long: bool) -> None:
        self.running -= 1
        self._running_long -= is_long
        self._delay_until = asyncio.get_running_loop().time() + self._limits.batch_delay_ms / 1000
        if not task.cancelled() and task.exception():
            LOG.error("a batch was lost", exc_info=task.exception())
        self._dispatch()

    def _outputs(self, rows: list[_Row]) -> list[Arrays | ServingError]:
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
            self._metrics.retries.labels(self._name).inc()
            failed: dict[int, ServingError] = {}
            return [self._retry_row(row, failed) for row in rows]

    def _retry_row(self, row: _Row, failed: dict[int, ServingError]) -> Arrays | ServingError:
        """Return the outputs of a row of a failed batch, called alone.

        `failed` has the errors by the `id` of requests with a failed row; their other rows are not
        called.
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
