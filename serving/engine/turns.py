"""The order of each client's own requests: short ones first, and none waits without end."""

import collections


class Turns:
    """The turns of the requests that wait, by client; the request with the least turn is next.

    A turn is when a request would end if all waiting requests of its client advanced at the same
    pace: the fair sojourn protocol (Friedman and Henderson 2003, "Fairness and efficiency in web
    server protocols", section 3). A short request therefore comes before the long ones that wait,
    while every piece of work that is done brings the turn of a long one closer, whatever arrives
    later. Clients do not affect each other's turns.
    """

    def __init__(self) -> None:
        self._waiting: collections.Counter[str] = collections.Counter()
        self._progress: dict[str, float] = {}  # work done for each of a client's requests

    def join(self, client: str, work: float) -> float:
        """Return the turn of a new request, which needs `work`, in a unit common to all."""
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
