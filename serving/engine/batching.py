"""Batching of concurrent requests, whose rows wait in a bounded queue until a deadline."""

import asyncio
import collections
import functools
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from onepass.bundles.errors import (
    Cancelled,
    DeadlineExceeded,
    Internal,
    NotReady,
    Overloaded,
    ServingError,
    TooLarge,
)
from serving.engine.call_times import CallTimes
from serving.engine.fair_shares import current_client
from serving.engine.padding import Arrays, Fitted, Padding
from serving.engine.row_queue import Request, Row, RowQueue
from serving.observability.logs import request_id
from serving.observability.metrics import Metrics
from serving.settings import Settings

LOG = logging.getLogger(__name__)
MAX_RETRY_SECONDS = 60.0
LARGE_BYTES = 2**20  # larger outputs are copied in a thread
Call = Callable[[str, Arrays], Arrays]


class Batcher:
    """Calls a model with batches of rows from concurrent requests.

    A single request is called immediately. Requests that arrive during a call share the next call.
    After a shared call, the next one waits a moment, which lets more requests join it. `RowQueue`
    decides which rows are next. A call gets only as many rows as are expected to take CALL_SECONDS,
    so other requests run between the calls of a large request. A row that takes longer than that
    runs in a separate thread.
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
        # Not a bound method, so that no reference cycle keeps the bundle of a dropped model alive.
        self._queue = RowQueue(padding, limits, lambda n: metrics.queue_rows.labels(name).inc(n))
        self.running = self._running_long = 0
        self._expected_requests, self._delay_until = 1, 0.0
        self._times = CallTimes()
        self._closed = False

    async def submit(
        self, signature: str, inputs: Arrays, timeout_seconds: float | None = None
    ) -> Arrays:
        """Return a signature's outputs for checked inputs; drop a cancelled request's rows."""
        request = self._enqueue_request(
            signature, self._padding.fit(signature, inputs), timeout_seconds
        )
        self._dispatch()
        try:
            async with asyncio.timeout(timeout_seconds):
                await request.answer
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"No answer within {timeout_seconds:g} seconds; {self._queue.rows} rows wait."
            ) from error
        finally:
            request.answer.cancel()
            self._queue.remove(request)
        if request.result_bytes > LARGE_BYTES:
            return await asyncio.to_thread(self._assemble_results, request)
        return self._assemble_results(request)

    def close(self) -> None:
        """Fail waiting and later requests with NotReady."""
        self._closed = True
        for request in self._queue:
            _fail(request, NotReady("The server is stopping."))

    def _enqueue_request(
        self, signature: str, fitted: Fitted, timeout_seconds: float | None = None
    ) -> Request:
        loop, limits = asyncio.get_running_loop(), self._limits
        rows = len(next(iter(fitted.inputs.values())))
        most = min(limits.queue_rows, limits.max_rows)
        if rows > most:
            raise TooLarge(f"The batch must have at most {most} rows, got {rows}.")
        request = Request(
            current_client(),
            signature,
            fitted,
            loop.create_future(),
            loop.time(),
            request_id(),
            [None] * rows,
            collections.deque(range(rows)),
            self._times.seconds_per_row(fitted.key, signature, fitted.cost),
        )
        if request.waiting_bytes > limits.queue_bytes:
            raise TooLarge(
                f"The inputs must have at most {limits.queue_bytes:,} bytes, got "
                f"{request.waiting_bytes:,}."
            )
        if self._closed:
            raise NotReady("The server is stopping.")
        given_up = self._queue.room_for(request)
        if given_up is None:
            raise self._full()
        if timeout_seconds is not None:
            self._check_time(request, timeout_seconds)
        for other in given_up:
            _fail(other, self._full())
            self._queue.remove(other)
        self._queue.add(request)
        return request

    def _full(self) -> Overloaded:
        wait = sum(waiting.seconds for waiting in self._queue) / self._limits.threads
        return Overloaded(
            f"The queue is full: {self._queue.rows} rows wait.",
            min(max(1.0, wait), MAX_RETRY_SECONDS),
        )

    def _check_time(self, request: Request, seconds: float) -> None:
        """Raise Overloaded if the request would be late even at best; TooLarge if always."""
        threads = 1 if request.is_long else self._limits.threads
        alone = request.seconds / threads
        if alone > seconds:
            raise TooLarge(
                f"The request would take about {alone:.0f} seconds, with a limit of {seconds:.3g}: "
                "ask for fewer rows, shorter ones, or a stream."
            )
        needed = (request.seconds + self._queue.seconds_before(request)) / threads
        if needed > seconds:
            raise Overloaded(
                f"The queue takes about {needed:.0f} seconds, with a limit of {seconds:.3g}.",
                min(needed - seconds + 1.0, MAX_RETRY_SECONDS),
            )

    def _dispatch(self) -> None:
        loop = asyncio.get_running_loop()
        while (request := self._next_request()) is not None:
            wait_seconds = self._delay_until - loop.time()
            if wait_seconds > 0 and not self._is_worth_a_call(request):
                loop.call_later(wait_seconds, self._dispatch)
                return
            self._expected_requests = len(self._queue.alike(request))
            rows = self._queue.take(request)
            self.running += 1
            self._running_long += request.is_long
            done = functools.partial(self._batch_done, is_long=request.is_long)
            loop.create_task(self._run(rows)).add_done_callback(done)

    def _next_request(self) -> Request | None:
        has_short = self.running - self._running_long < self._limits.threads
        return self._queue.next_request(
            lambda request: not self._running_long if request.is_long else has_short
        )

    def _is_worth_a_call(self, request: Request) -> bool:
        alike = self._queue.alike(request)
        rows = sum(len(other.waiting) for other in alike)
        return len(alike) >= self._expected_requests or rows >= self._padding.max_batch

    async def _run(self, rows: list[Row]) -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()
        for row in rows:
            self._metrics.queue_seconds.labels(self._name).observe(start - row.request.arrived)
        self._metrics.running.labels(self._name).inc()
        results = await loop.run_in_executor(self._pool, self._outputs, rows)
        seconds, first = loop.time() - start, rows[0].request
        self._queue.charge(rows, seconds / len(rows))
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

    def _outputs(self, rows: list[Row]) -> list[Arrays | ServingError]:
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

    def _retry_row(self, row: Row, failed: dict[int, ServingError]) -> Arrays | ServingError:
        """Return the outputs or the error of one row of a failed batch, from a separate call.

        `failed` maps the `id` of each request with a failed row to its error, and is updated in
        place; the remaining rows of such a request are not called.
        """
        if row.request.answer.done():
            return Cancelled("The request was cancelled.")
        if id(row.request) not in failed:
            result = self._outputs([row])[0]
            if not isinstance(result, ServingError):
                return result
            failed[id(row.request)] = result
        return failed[id(row.request)]

    def _assemble_results(self, request: Request) -> Arrays:
        results = [result for result in request.results if result is not None]
        return self._padding.crop(self._padding.join(results))


def _fail(request: Request, error: ServingError) -> None:
    if not request.answer.done():
        request.answer.set_exception(error)


def _failure(error: Exception, identity: str) -> ServingError:
    if isinstance(error, ServingError):
        return error
    LOG.error("a call failed", exc_info=error, extra={"request": identity})
    return Internal()
