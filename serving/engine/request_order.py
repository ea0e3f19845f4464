"""The order of each client's own requests: short ones first, and none waits without end."""

import collections


class RequestOrder:
    """Ranks of the requests that wait; of a client's requests, the one of the lowest rank is next.

    A rank is when a request would end if all waiting requests of its client advanced at the same
    pace: the fair sojourn protocol (Friedman and Henderson 2003, "Fairness and efficiency in web
    server protocols"). A short request therefore comes before the long ones that wait, while all
    work that is done raises the ranks of requests that arrive later, so that a long one is next in
    the end. Clients do not affect each other's ranks.
    """

    def __init__(self) -> None:
        self._waiting: collections.Counter[str] = collections.Counter()
        self._progress: dict[str, float] = {}  # work done for each of a client's requests

    def join(self, client: str, work: float) -> float:
        """Return the rank of a new request, which needs `work`, in a unit common to all."""
        self._waiting[client] += 1
        return self._progress.setdefault(client, 0.0) + work

    def advance(self, client: str, work: float) -> None:
        """Record that work is being done for a request of a client that waits."""
        self._progress[client] += work / self._waiting[client]

    def leave(self, client: str) -> None:
        """Record that a request of a client waits no longer."""
        self._waiting[client] -= 1
        if not self._waiting[client]:
            del self._waiting[client], self._progress[client]
