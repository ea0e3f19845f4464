"""Permits to use a processor, shared fairly among clients."""

import contextlib
import os
import threading
import time
from collections.abc import Iterator

from serving.engine.fair_shares import FairShares


class Permits:
    """A limited number of permits; the client that has held permits for the least time is next.

    A client's permits are granted in the order of its requests. Unlike with `threading.Semaphore`,
    a thread that releases a permit and immediately requests a new one queues behind the client's
    waiting threads. If no permit is released for `patience_seconds`, the threads that hold them are
    assumed to hang, and a waiting thread continues without a permit.
    """

    def __init__(self, number: int, patience_seconds: float = 10.0):
        self._free, self._patience_seconds = number, patience_seconds
        self._changed = threading.Condition()
        self._waiting: dict[object, str] = {}
        self._shares = FairShares()
        self._given_back = 0

    @contextlib.contextmanager
    def permit(self, client: str = "") -> Iterator[None]:
        """Wait for a permit, at most until the patience ends; hold it while the context lasts."""
        was_granted = self._take(client)
        start = time.monotonic()
        try:
            yield
        finally:
            self._give_back(client, time.monotonic() - start, was_granted)

    def _take(self, client: str) -> bool:
        """Wait for a permit; return False if the patience ended before it was granted."""
        ticket = object()
        with self._changed:
            self._waiting[ticket] = client
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

    def _first(self) -> object:
        client = self._shares.next_of(self._waiting.values())
        return next(ticket for ticket, waiting in self._waiting.items() if waiting == client)

    def _give_back(self, client: str, seconds: float, was_granted: bool) -> None:
        with self._changed:
            self._free += 1
            self._given_back += was_granted
            self._shares.charge(client, seconds)
            self._changed.notify_all()


PROCESSORS = Permits(os.cpu_count() or 1)  # for all models together
