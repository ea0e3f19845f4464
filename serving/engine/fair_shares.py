"""Who goes next where many wait: the one that has used least so far."""

import contextlib
import threading
import time
from collections.abc import Hashable, Iterable, Iterator


class FairShares:
    """What each one has used.

    One that comes, or comes back, starts with the least of those that wait: nobody saves up while
    idle, nobody pays for what was used before there was anybody else (start-time fair queueing,
    Goyal, Vin and Cheng 1996).
    """

    def __init__(self) -> None:
        self._used: dict[Hashable, float] = {}

    def join(self, one: Hashable, waiting: Iterable[Hashable]) -> None:
        """One begins to wait beside those that wait already."""
        least = min((self.used(other) for other in waiting), default=None)
        if least is None:
            self._used.clear()
        self._used[one] = max(self.used(one), least or 0.0)

    def charge(self, one: Hashable, amount: float) -> None:
        """Adds to what one has used."""
        self._used[one] = self.used(one) + amount

    def used(self, one: Hashable) -> float:
        """What one has used."""
        return self._used.get(one, 0.0)


class FairSemaphore:
    """Permits of threads, for a few processors, by what each client has used of them, in seconds.

    Args:
      places: threads at the same time.
      patience_seconds: after which a thread goes on without a permit, as others hang.
    """

    def __init__(self, places: int, patience_seconds: float = 10.0):
        self._free, self._patience_seconds = places, patience_seconds
        self._shares, self._changed = FairShares(), threading.Condition()
        self._waiting: dict[object, Hashable] = {}

    @contextlib.contextmanager
    def permit(self, client: Hashable) -> Iterator[None]:
        """A permit while the context lasts; waits for it."""
        self._take(client)
        start = time.monotonic()
        try:
            yield
        finally:
            with self._changed:
                self._free += 1
                self._shares.charge(client, time.monotonic() - start)
                self._changed.notify_all()

    def _take(self, client: Hashable) -> None:
        ticket = object()
        with self._changed:
            self._shares.join(client, self._waiting.values())
            self._waiting[ticket] = client
            self._changed.wait_for(
                lambda: self._free > 0 and self._next() is ticket, self._patience_seconds
            )
            del self._waiting[ticket]
            self._free -= 1
            self._changed.notify_all()

    def _next(self) -> object:
        return min(self._waiting, key=lambda ticket: self._shares.used(self._waiting[ticket]))
