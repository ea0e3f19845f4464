"""Permits for threads that compute, in the order in which they ask."""

import contextlib
import threading
from collections.abc import Iterator


class Permits:
    """A limited number of permits, handed out first come, first served.

    Unlike with `threading.Semaphore`, a thread that returns a permit and asks again at once goes
    behind those that wait.

    Args:
      number: threads at the same time.
      patience_seconds: after which a thread continues without a permit, since others hang.
    """

    def __init__(self, number: int, patience_seconds: float = 10.0):
        self._free, self._patience_seconds = number, patience_seconds
        self._changed = threading.Condition()
        self._waiting: dict[object, None] = {}

    @contextlib.contextmanager
    def permit(self) -> Iterator[None]:
        """Wait for a permit, and hold it while the context lasts."""
        self._take(object())
        try:
            yield
        finally:
            with self._changed:
                self._free += 1
                self._changed.notify_all()

    def _take(self, ticket: object) -> None:
        with self._changed:
            self._waiting[ticket] = None
            self._changed.wait_for(
                lambda: self._free > 0 and next(iter(self._waiting)) is ticket,
                self._patience_seconds,
            )
            del self._waiting[ticket]
            self._free -= 1
            self._changed.notify_all()
