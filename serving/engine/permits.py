"""Permits to use a processor, shared fairly among clients."""

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Iterator

from serving.engine.fair_shares import FairShares

HEAD_START_SECONDS = 1.0  # of work that has not held a permit, before other work of its client


@dataclasses.dataclass
class Use:
    """The seconds for which the permits of one piece of work after the other were held."""

    seconds: float = 0.0


@dataclasses.dataclass(frozen=True, eq=False)
class _Ticket:
    client: str
    rank: float


class Permits:
    """A limited number of permits; the client that has held permits for the least time is next.

    A client's permits are granted in the order in which they are asked for, but work that has held
    permits before comes as much later, at most HEAD_START_SECONDS: short work first. Unlike with
    `threading.Semaphore`, a thread that releases a permit and immediately requests a new one queues
    behind the client's waiting threads. If no permit is released for `patience_seconds`, the
    threads that hold them are assumed to hang, and a waiting thread continues without a permit.
    """

    def __init__(self, number: int, patience_seconds: float = 10.0):
        self._free, self._patience_seconds = number, patience_seconds
        self._changed = threading.Condition()
        self._waiting: dict[_Ticket, None] = {}
        self._shares = FairShares()
        self._given_back = 0

    @contextlib.contextmanager
    def permit(self, client: str = "", use: Use | None = None) -> Iterator[None]:
        """Hold a permit inside the block, waited for until the patience ends; update `use`."""
        use = use or Use()
        was_granted = self._take(client, use)
        start = time.monotonic()
        try:
            yield
        finally:
            seconds = time.monotonic() - start
            use.seconds += seconds
            self._give_back(client, seconds, was_granted)

    def _take(self, client: str, use: Use) -> bool:
        ticket = _Ticket(client, time.monotonic() + min(use.seconds, HEAD_START_SECONDS))
        with self._changed:
            self._waiting[ticket] = None
            granted = False
            while not granted:
                before = self._given_back
                granted = self._changed.wait_for(
                    lambda: self._free > 0 and self._first() is ticket, self._patience_seconds
                )
                if before == self._given_back:
                    break
            del self._waiting[ticket]
            self._free -= 1
            self._shares.serve(client)
            self._changed.notify_all()
        return granted

    def _first(self) -> _Ticket:
        client = self._shares.next_of(ticket.client for ticket in self._waiting)
        own = (ticket for ticket in self._waiting if ticket.client == client)
        return min(own, key=lambda ticket: ticket.rank)

    def _give_back(self, client: str, seconds: float, was_granted: bool) -> None:
        with self._changed:
            self._free += 1
            self._given_back += was_granted
            self._shares.charge(client, seconds)
            self._changed.notify_all()


PROCESSORS = Permits(os.cpu_count() or 1)  # for all models together
