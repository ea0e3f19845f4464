"""Batching of concurrent requests, whose rows wait in a bounded queue until a deadline."""

import asyncio
import bisect
import collections
import dataclasses
import functools
import itertools
import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from onepass.bundles import errors
from onepass.bundles.signature import STATE, Arrays, Signature, counted_inputs
from onepass.foundation.rules import must_be
from onepass.interface import LISTS
from serving.engine.clients import FairShares, RequestOrder, current_client
from serving.observability import Metrics, request_id
from serving.settings import Settings

REMEMBERED = 8  # calls remembered per kind
MAX_KINDS = 256
MAX_STEP = 8.0  # largest ratio of costs between a kind and the kind it is estimated from
COUNTS = ("num_frames", "num_samples")  # inputs that determine the length of the output
SHORTEST_LIST = 16  # length that the shortest lists of options are padded to
MAX_PADDING_SHARE = 0.25  # largest share of padding rows in a call
CALL_SECONDS = 1.0  # longest intended call of several rows, as other requests wait for it
SPARE_PART = 8  # the queue accepts 1/8 more rows from clients that fill little of it
SMALL_PART = 1 / 16  # largest share of the queue that counts as little
LEAST_CHARGE = 1e-3  # in seconds, for a row of unknown duration, until its call ends
LOG = logging.getLogger(__name__)
MAX_RETRY_SECONDS = 60.0
LARGE_BYTES = 2**20  # larger outputs are copied in a thread
Call = Callable[[str, Arrays], Arrays]


class CallTimes:
    """Seconds per row for each kind of call, that is, for each signature and its shapes.

    The estimate is the minimum over recent calls, so only hopeless requests are rejected. A kind
    that was called once counts as unknown: that call may have included compilation, and its time
    could lead to the rejection of the calls that would show how fast the kind is.
    """

    def __init__(self) -> None:
        self._seconds: dict[Hashable, tuple[str, float, collections.deque]] = {}

    def note(self, kind: Hashable, signature: str, cost: float, seconds_per_row: float) -> None:
        """Record the seconds per row of a call, and the cost of one of its rows."""
        noted = self._seconds.pop(kind, (signature, cost, collections.deque(maxlen=REMEMBERED)))
        noted[2].append(seconds_per_row)
        self._seconds[kind] = noted  # the last now
        if len(self._seconds) > MAX_KINDS:
            del self._seconds[next(iter(self._seconds))]

    def seconds_per_row(self, kind: Hashable, signature: str, cost: float) -> float:
        """Return the estimate of a kind, or that of the next cheaper one; 0.0 if unknown."""
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


@dataclasses.dataclass(frozen=True)
class Fitted:
    """One request's inputs, cropped, with padded lengths by name; equal `key`s may share a call."""

    inputs: Arrays
    lengths: dict[str, int]
    key: tuple

    @property
    def cost(self) -> float:
        """Cost of a row: the length of its padded inputs, else of its output; 1 without either."""
        counts = [self.inputs[name] for name in COUNTS if name in self.inputs]
        longest = float(counts[0].max(initial=1)) if counts else 1.0
        lengths = [length for name, length in self.lengths.items() if name not in LISTS]
        return float(max(lengths, default=longest))


class Padding:
    """The lengths and batch sizes that the entry `serving` of model.json allows.

    Rows of lists, such as prefixes, are padded to twice the length of the shortest, and so on; all
    others to one of the `buckets`.
    """

    def __init__(
        self, serving: Mapping[str, Any], signatures: Mapping[str, Signature] = MappingProxyType({})
    ):
        self._buckets, self._signatures = serving.get("buckets", [1]), signatures
        self.allowed = sorted(serving.get("allowed_batches") or [1])

    @property
    def max_batch(self) -> int:
        """Largest number of rows of a call."""
        return self.allowed[-1]

    def fit(self, signature: str, inputs: Arrays) -> Fitted:
        """Return the inputs cropped to their longest row; raise InvalidInput if it is too long.

        Inputs of streaming signatures, whose rows must have equal length, are not cropped, and
        their requests do not share calls.
        """
        if signature in ("chunk", "prompted_chunk"):
            return Fitted(inputs, {}, (signature, object()))
        fitted, lengths = dict(inputs), {}
        known = self._signatures[signature].inputs
        for name, count in counted_inputs(known).items():
            buckets = _list_buckets(known[count].high) if name in LISTS else self._buckets
            longest, given, most = int(inputs[count].max()), inputs[name].shape[1], buckets[-1]
            if longest > min(given, most):
                rule = f"at most the {given} of `{name}`" if longest > given else f"at most {most}"
                raise errors.InvalidInput(must_be(count, rule, longest))
            fitted[name] = inputs[name][:, :longest]
            lengths[name] = buckets[bisect.bisect_left(buckets, longest)]
        others = tuple((n, x.shape[1:]) for n, x in fitted.items() if n not in lengths)
        return Fitted(fitted, lengths, (signature, tuple(lengths.items()), others))

    def size(self, rows: int) -> int:
        """Return the size of a call for waiting `rows`, above it only if few are padded."""
        if rows >= self.max_batch:
            return self.max_batch
        index = bisect.bisect_left(self.allowed, rows)
        above = self.allowed[index]
        if above - rows <= MAX_PADDING_SHARE * above or index == 0:
            return above
        return self.allowed[index - 1]


def _list_buckets(most: float | None) -> list[int]:
    sizes = (SHORTEST_LIST << n for n in itertools.count())
    return [*itertools.takewhile(lambda size: size < (most or 1), sizes), int(most or 1)]


def _pad(array: np.ndarray, length: int) -> np.ndarray:
    return np.pad(array, [(0, length - len(array)), *[(0, 0)] * (array.ndim - 1)])


def join_rows(rows: Sequence[Arrays], lengths: Mapping[str, int] = MappingProxyType({})) -> Arrays:
    """Return rows as a batch; shorter ones are padded with zeros, up to one of the `lengths`."""
    joined = {}
    for name in rows[0]:
        arrays = [row[name] for row in rows]
        if arrays[0].ndim:
            longest = lengths.get(name) or max(map(len, arrays))
            arrays = [x if len(x) == longest else _pad(x, longest) for x in arrays]
        joined[name] = np.stack(arrays)
    return joined


@dataclasses.dataclass(eq=False)
class Request:
    """A request with its inputs, its waiting rows and the future of its outputs."""

    client: str
    signature: str
    fitted: Fitted
    answer: asyncio.Future
    arrived: float
    id: str
    results: list[Arrays | None]  # outputs of each row; None for a row without outputs yet
    waiting: collections.deque[int]
    row_seconds: float  # estimated; 0.0 if unknown
    rank: float = 0.0  # among the requests of its client (`RequestOrder`), set by the queue

    @property
    def bytes_per_row(self) -> int:
        """Size of the inputs of a row, in bytes."""
        return sum(array.nbytes for array in self.fitted.inputs.values()) // len(self.results)

    @property
    def waiting_bytes(self) -> int:
        """Size of the inputs of the waiting rows, in bytes."""
        return len(self.waiting) * self.bytes_per_row

    @property
    def seconds(self) -> float:
        """Estimated time for the waiting rows, in seconds."""
        return len(self.waiting) * self.row_seconds

    @property
    def charge(self) -> float:
        """Seconds that the client is charged for a row until its call has ended."""
        return max(self.row_seconds, LEAST_CHARGE)

    @property
    def is_long(self) -> bool:
        """True if a single row is estimated to take longer than CALL_SECONDS."""
        return self.row_seconds > CALL_SECONDS


class Row(NamedTuple):
    """A row of a request, given by its index `number`."""

    request: Request
    number: int

    def inputs(self) -> Arrays:
        """Return the inputs of the row."""
        return {name: array[self.number] for name, array in self.request.fitted.inputs.items()}


class RowQueue:
    """Requests with waiting rows.

    The next row belongs to the client whose rows have taken the least time, and there to the
    request of the lowest rank (`RequestOrder`): short ones first, and none is starved. `changed` is
    called with the number of rows that were added, negative for removed ones.
    """

    def __init__(self, padding: Padding, limits: Settings, changed: Callable[[int], None]):
        self._padding, self._limits, self._changed = padding, limits, changed
        self._requests: dict[Request, None] = {}
        self._shares, self._order = FairShares(), RequestOrder()
        self.rows = self.bytes = 0

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def add(self, request: Request) -> None:
        """Append a request."""
        request.rank = self._order.join(request.client, len(request.waiting) * request.charge)
        self._requests[request] = None
        self._count(request, len(request.waiting))

    def remove(self, request: Request) -> None:
        """Remove a request with its waiting rows, if it is in the queue."""
        self._count(request, -len(request.waiting))
        request.waiting.clear()
        if request in self._requests:
            del self._requests[request]
            self._order.leave(request.client)

    def room_for(self, new: Request) -> list[Request] | None:
        """Return the requests to drop so that a new one fits; None if it must be rejected.

        A full queue drops requests of clients that fill more than their fair share of it and more
        than the new request's client, the latest requests first, and only those of which no call
        has taken a row. The limit on rows is slightly higher for clients that fill little of it.
        """
        filled: dict[str, float] = collections.defaultdict(float)
        for request in (*self._requests, new):
            filled[request.client] += self._part(request)
        most = self._limits.queue_rows
        most += most // SPARE_PART if filled[new.client] <= SMALL_PART else 0
        rows, size = self.rows + len(new.waiting), self.bytes + new.waiting_bytes
        given_up: list[Request] = []
        for request in reversed(self._requests):
            if rows <= most and size <= self._limits.queue_bytes:
                break
            part, is_new = filled[request.client], len(request.waiting) == len(request.results)
            if is_new and part > max(filled[new.client], 1.0 / len(filled)):
                given_up.append(request)
                filled[request.client] -= self._part(request)
                rows, size = rows - len(request.waiting), size - request.waiting_bytes
        return given_up if rows <= most and size <= self._limits.queue_bytes else None

    def seconds_before(self, new: Request) -> float:
        """Estimate the seconds of other requests' calls before the last call of a new request.

        Each request of its client gets at most as much time before it ends, as if they all took
        turns; every other client gets at most as much time as this client.
        """
        rivals = [other for other in self._requests if other.is_long == new.is_long]
        own = [min(other.seconds, new.seconds) for other in rivals if other.client == new.client]
        others: dict[str, float] = collections.defaultdict(float)
        for other in rivals:
            if other.client != new.client:
                others[other.client] += other.seconds
        most = sum(own) + new.seconds
        return sum(own) + sum(min(seconds, most) for seconds in others.values())

    def next_request(self, is_able: Callable[[Request], bool]) -> Request | None:
        """Return the request whose row is next, among those for which `is_able` is true."""
        able: dict[str, Request] = {}
        for request in self._requests:
            if is_able(request):
                first = able.setdefault(request.client, request)
                able[request.client] = min(first, request, key=lambda each: each.rank)
        return able[self._shares.next_of(able)] if able else None

    def alike(self, request: Request) -> list[Request]:
        """Return the requests that can share a call with this one, including itself."""
        return [other for other in self._requests if other.fitted.key == request.fitted.key]

    def take(self, first: Request) -> list[Row]:
        """Take the rows of the next call, which `first` starts, out of the queue.

        Their number is limited by CALL_SECONDS and the allowed batch sizes. No client gets more
        rows than the client with the fewest waiting rows has, which therefore does not wait for
        more rows of any other client than its own.
        """
        by_client: dict[str, list[Row]] = {}
        for request in sorted(self.alike(first), key=lambda each: each.rank):
            rows = by_client.setdefault(request.client, [])
            rows += [Row(request, number) for number in request.waiting]
        each = min(map(len, by_client.values()))
        count = each * len(by_client)
        if first.row_seconds:
            count = min(count, max(1, int(CALL_SECONDS / first.row_seconds)))
        count = min(count, self._padding.size(count))
        self._shares.serve(first.client)
        left = {client: iter(rows[:each]) for client, rows in by_client.items()}
        taken: list[Row] = []
        while len(taken) < count:
            client = self._shares.next_of(left)
            row = next(left[client], None)
            if row is None:
                del left[client]
                continue
            taken.append(row)
            self._shares.charge(client, first.charge)
        self._remove(taken)
        return taken

    def charge(self, rows: Iterable[Row], seconds: float) -> None:
        """Replace the estimated charges of a call's rows by the seconds that each row took."""
        for row in rows:
            self._shares.charge(row.request.client, seconds - row.request.charge)

    def _remove(self, rows: list[Row]) -> None:
        for row in rows:
            row.request.waiting.popleft()
            self._order.advance(row.request.client, row.request.charge)
            self._count(row.request, -1)
        for request in dict.fromkeys(row.request for row in rows):
            if not request.waiting:
                self.remove(request)

    def _part(self, request: Request) -> float:
        rows = len(request.waiting) / self._limits.queue_rows
        return max(rows, request.waiting_bytes / self._limits.queue_bytes)

    def _count(self, request: Request, rows: int) -> None:
        self.rows += rows
        self.bytes += rows * request.bytes_per_row
        if rows:
            self._changed(rows)


class Batcher:
    """Calls a model with batches of rows from concurrent requests.

    A single request is called immediately; those that arrive during a call share the next one,
    which after a shared call waits a moment for more to join it. A call gets only as many rows as
    are expected to take CALL_SECONDS, so others run between the calls of a large request; a row
    that takes longer runs in a separate thread.
    """

    def __init__(
        self, call: Call, padding: Padding, limits: Settings, metrics: Metrics, name: str = "model"
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
        fitted = self._padding.fit(signature, inputs)
        request = self._enqueue_request(signature, fitted, timeout_seconds)
        self._dispatch()
        try:
            async with asyncio.timeout(timeout_seconds):
                await request.answer
        except TimeoutError as error:
            raise errors.DeadlineExceeded(
                f"No answer within {timeout_seconds:g} seconds; {self._queue.rows} rows wait."
            ) from error
        finally:
            request.answer.cancel()
            self._queue.remove(request)
        results = [result for result in request.results if result is not None]
        if sum(array.nbytes for row in results for array in row.values()) > LARGE_BYTES:
            return await asyncio.to_thread(_assemble_results, results)
        return _assemble_results(results)

    def close(self) -> None:
        """Fail waiting and later requests with NotReady."""
        self._closed = True
        for request in self._queue:
            _fail(request, errors.NotReady("The server is stopping."))

    def _enqueue_request(
        self, signature: str, fitted: Fitted, timeout_seconds: float | None
    ) -> Request:
        loop, limits = asyncio.get_running_loop(), self._limits
        rows = len(next(iter(fitted.inputs.values())))
        most = min(limits.queue_rows, limits.max_rows)
        if rows > most:
            raise errors.TooLarge(f"The batch must have at most {most} rows, got {rows}.")
        request = Request(
            client=current_client(),
            signature=signature,
            fitted=fitted,
            answer=loop.create_future(),
            arrived=loop.time(),
            id=request_id(),
            results=[None] * rows,
            waiting=collections.deque(range(rows)),
            row_seconds=self._times.seconds_per_row(fitted.key, signature, fitted.cost),
        )
        if request.waiting_bytes > limits.queue_bytes:
            raise errors.TooLarge(
                f"The inputs must have at most {limits.queue_bytes:,} bytes, got "
                f"{request.waiting_bytes:,}."
            )
        if self._closed:
            raise errors.NotReady("The server is stopping.")
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

    def _full(self) -> errors.Overloaded:
        wait = sum(waiting.seconds for waiting in self._queue) / self._limits.threads
        why = f"The queue is full: {self._queue.rows} rows wait."
        return errors.Overloaded(why, min(max(1.0, wait), MAX_RETRY_SECONDS))

    def _check_time(self, request: Request, seconds: float) -> None:
        threads = 1 if request.is_long else self._limits.threads
        alone = request.seconds / threads
        if alone > seconds:
            raise errors.TooLarge(
                f"The request would take about {alone:.0f} seconds, with a limit of {seconds:.3g}: "
                "ask for fewer rows, shorter ones, or a stream."
            )
        needed = (request.seconds + self._queue.seconds_before(request)) / threads
        if needed > seconds:
            raise errors.Overloaded(
                f"The queue takes about {needed:.0f} seconds, with a limit of {seconds:.3g}.",
                min(needed - seconds + 1.0, MAX_RETRY_SECONDS),
            )

    def _dispatch(self) -> None:
        loop = asyncio.get_running_loop()

        def has_thread(request: Request) -> bool:
            short = self.running - self._running_long
            return not self._running_long if request.is_long else short < self._limits.threads

        while (request := self._queue.next_request(has_thread)) is not None:
            wait_seconds, alike = self._delay_until - loop.time(), self._queue.alike(request)
            num_rows = sum(len(other.waiting) for other in alike)
            is_small = len(alike) < self._expected_requests and num_rows < self._padding.max_batch
            if wait_seconds > 0 and is_small:
                loop.call_later(wait_seconds, self._dispatch)
                return
            self._expected_requests = len(alike)
            rows = self._queue.take(request)
            self.running += 1
            self._running_long += request.is_long
            done = functools.partial(self._batch_done, is_long=request.is_long)
            loop.create_task(self._run(rows)).add_done_callback(done)

    async def _run(self, rows: list[Row]) -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()
        for row in rows:
            self._metrics.queue_seconds.labels(self._name).observe(start - row.request.arrived)
        self._metrics.running.labels(self._name).inc()
        results = await loop.run_in_executor(self._pool, self._outputs, rows)
        seconds, first = loop.time() - start, rows[0].request
        self._queue.charge(rows, seconds / len(rows))
        size = self._padding.size(len(rows))
        self._times.note(first.fitted.key, first.signature, first.fitted.cost, seconds / size)
        self._metrics.running.labels(self._name).dec()
        self._metrics.batch_rows.labels(self._name).observe(len(rows))
        self._metrics.call_seconds.labels(self._name).observe(seconds)
        for row, result in zip(rows, results, strict=True):
            if isinstance(result, errors.ServingError):
                _fail(row.request, result)
            else:
                row.request.results[row.number] = result
                is_whole = all(each is not None for each in row.request.results)
                if is_whole and not row.request.answer.done():
                    row.request.answer.set_result(None)

    def _batch_done(self, task: asyncio.Task, is_long: bool) -> None:
        self.running -= 1
        self._running_long -= is_long
        self._delay_until = asyncio.get_running_loop().time() + self._limits.batch_delay_ms / 1000
        if not task.cancelled() and task.exception():
            LOG.error("a batch was lost", exc_info=task.exception())
        self._dispatch()

    def _outputs(self, rows: list[Row]) -> list[Arrays | errors.ServingError]:
        request = rows[0].request
        try:
            size = self._padding.size(len(rows))
            filled = [*rows, *[rows[0]] * (size - len(rows))]  # by repeating the first
            batch = join_rows([row.inputs() for row in filled], request.fitted.lengths)
            outputs = self._call(request.signature, batch)
            return [{name: array[n] for name, array in outputs.items()} for n in range(len(rows))]
        except Exception as error:
            if len(rows) > 1:
                self._metrics.retries.labels(self._name).inc()
                failed: dict[int, errors.ServingError] = {}
                return [self._retry_row(row, failed) for row in rows]
            if isinstance(error, errors.ServingError):
                return [error]
            LOG.error("a call failed", exc_info=error, extra={"request": request.id})
            return [errors.Internal()]

    def _retry_row(
        self, row: Row, failed: dict[int, errors.ServingError]
    ) -> Arrays | errors.ServingError:
        """Return the outputs or the error of one row of a failed batch, from a separate call.

        `failed`, which is updated, has the error of each request with a failed row by its `id`; the
        remaining rows of such a request are not called.
        """
        if row.request.answer.done():
            return errors.Cancelled("The request was cancelled.")
        if id(row.request) not in failed:
            result = self._outputs([row])[0]
            if not isinstance(result, errors.ServingError):
                return result
            failed[id(row.request)] = result
        return failed[id(row.request)]


def _assemble_results(results: list[Arrays]) -> Arrays:
    """Return a request's outputs as one batch, cropped to its longest row."""
    outputs = join_rows(results)
    if "num_samples" not in outputs:
        return outputs
    longest = int(outputs["num_samples"].max())
    is_timed = {n: x.ndim > 1 and not n.startswith(STATE) for n, x in outputs.items()}
    return {n: x[:, :longest] if is_timed[n] else x for n, x in outputs.items()}


def _fail(request: Request, error: errors.ServingError) -> None:
    if not request.answer.done():
        request.answer.set_exception(error)
