"""The rows that wait for a model: clients get fair shares, and short requests come first."""

import asyncio
import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from serving.engine.fair_shares import FairShares
from serving.engine.padding import Arrays, Fitted, Padding
from serving.engine.request_order import RequestOrder
from serving.settings import Settings

CALL_SECONDS = 1.0  # longest intended call of several rows, as other requests wait for it
SPARE_PART = 8  # the queue accepts 1/8 more rows from clients that fill little of it
SMALL_PART = 1 / 16  # largest share of the queue that counts as little
LEAST_CHARGE = 1e-3  # in seconds, for a row of unknown duration, until its call ends


@dataclasses.dataclass(eq=False)
class Request:
    """A request with its inputs, its waiting rows and the future of its outputs.

    Attributes:
      answer: future that completes when all rows have results, or fails with the request's error.
      results: outputs of each row; None for a row without outputs yet.
      waiting: indices of the rows that no call has taken yet.
      row_seconds: estimated seconds per row; 0.0 if unknown.
      rank: its rank among the requests of its client (`RequestOrder`), set by the queue.
    """

    client: str
    signature: str
    fitted: Fitted
    answer: asyncio.Future
    arrived: float
    id: str
    results: list[Arrays | None]
    waiting: collections.deque[int]
    row_seconds: float
    rank: float = 0.0

    @property
    def missing(self) -> int:
        """Number of rows without a result."""
        return sum(result is None for result in self.results)

    @property
    def bytes_per_row(self) -> int:
        """Size of the inputs of a row, in bytes."""
        return sum(array.nbytes for array in self.fitted.inputs.values()) // len(self.results)

    @property
    def waiting_bytes(self) -> int:
        """Size of the inputs of the waiting rows, in bytes."""
        return len(self.waiting) * self.bytes_per_row

    @property
    def result_bytes(self) -> int:
        """Size of the results so far, in bytes."""
        return sum(array.nbytes for row in self.results if row for array in row.values())

    @property
    def seconds(self) -> float:
        """Estimated time for the waiting rows, in seconds."""
        return len(self.waiting) * self.row_seconds

    @property
    def charge(self) -> float:
        """Seconds that the client is charged for a row until its call has ended."""
        return max(self.row_seconds, LEAST_CHARGE)

    @property
    def is_begun(self) -> bool:
        """True if a call has taken at least one row."""
        return len(self.waiting) < len(self.results)

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
            part = filled[request.client]
            if not request.is_begun and part > max(filled[new.client], 1.0 / len(filled)):
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
