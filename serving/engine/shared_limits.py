"""A limit that clients share: none can use it up, and who keeps the server waiting makes room."""

import collections
import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator

from serving.engine.clients import NOBODY, Client
from serving.errors import Overloaded
from serving.observability.refusals import Refusals

SHARE = 0.75  # of a limit that one client may hold
LITTLE, MUCH = 0.05, 0.2  # parts of a limit
RESERVE = 0.125  # of a limit that is kept for clients with a token, where one is needed


class Hold:
    """What a connection, a call, a body or a stream has of a limit.

    has_token: whether it goes last when room must be made. silent_since: since when the server
    waits for the client; None while it does not. evicted: whether it had to make room.
    """

    def __init__(
        self,
        client: Client = NOBODY,
        on_evict: Callable[[], None] = lambda: None,
        now: Callable[[], float] = time.monotonic,
    ):
        self.client, self.on_evict, self._now = client, on_evict, now
        self.amount, self.has_token = 0, client.has_token
        self.silent_since: float | None = None
        self.evicted = False

    def wait(self) -> None:
        """The server waits for the client from now on."""
        self.silent_since = self._now()

    def work(self) -> None:
        """It does not any more."""
        self.silent_since = None


class SharedLimit:
    """An amount of something, of which one client can hold SHARE at most.

    When it is used up, the holds whose clients have kept the server waiting for longer than
    `patience_seconds` make room: first those without a token, then those of the client that holds
    most, then the longest silent. Where nothing can make room, Overloaded is raised.

    used: what is held by all together.

    Args:
      what: it is of, in words. total: that may be held. patience_seconds: see above.
      has_reserve: whether RESERVE is kept for clients with a token.
      refusals: counts and logs what is refused or evicted.
      on_fall: called when little is held after much was.
    """

    def __init__(
        self,
        what: str,
        total: int,
        patience_seconds: float = 0.0,
        has_reserve: bool = False,
        refusals: Refusals | None = None,
        now: Callable[[], float] = time.monotonic,
        on_fall: Callable[[], None] = lambda: None,
    ):
        self._what, self.total, self._patience_seconds = what, total, patience_seconds
        self._reserve = int(RESERVE * total) if has_reserve else 0
        self._refusals, self._now = refusals or Refusals(), now
        self._holds: dict[Hold, None] = {}
        self._used_by: collections.Counter[tuple[str, bool]] = collections.Counter()
        self._on_fall = on_fall
        self.used = self._peak = 0

    def hold(
        self, client: Client, amount: int = 0, on_evict: Callable[[], None] = lambda: None
    ) -> Hold:
        """A hold of so much, to be released; Overloaded where there is no room."""
        hold = Hold(client, on_evict, self._now)
        self.resize(hold, amount)
        return hold

    @contextlib.contextmanager
    def held(self, client: Client, amount: int = 1) -> Iterator[Hold]:
        """A hold while the context lasts."""
        hold = self.hold(client, amount)
        try:
            yield hold
        finally:
            self.release(hold)

    def resize(self, hold: Hold, amount: int) -> None:
        """Makes a hold larger or smaller; Overloaded without room, or if it is evicted."""
        more = amount - hold.amount
        while more > 0 and not hold.evicted:
            rivals = self._rivals(hold, more)
            if rivals is None:
                break
            victim = self._victim(rivals)
            if victim is None:
                self._refusals.note(self._what, hold.client)
                raise Overloaded(f"There are too many {self._what} at once.")
            self._evict(victim)
        if hold.evicted:
            raise Overloaded(f"There are too many {self._what} at once, and this one was silent.")
        self._holds[hold] = None
        self._add(hold, more)

    def release(self, hold: Hold) -> None:
        """Gives it back; nothing happens the second time."""
        if self._holds.pop(hold, self) is None:
            self._add(hold, -hold.amount)

    def _add(self, hold: Hold, more: int) -> None:
        hold.amount += more
        self.used += more
        self._used_by[hold.client.key] += more
        if not self._used_by[hold.client.key]:
            del self._used_by[hold.client.key]
        self._peak = max(self._peak, self.used)
        if self.used <= LITTLE * self.total and self._peak >= MUCH * self.total:
            self._peak = self.used
            self._on_fall()

    def _rivals(self, hold: Hold, more: int) -> Iterable[Hold] | None:
        """The holds one of which must make room for so much more; None if there is room."""
        client = hold.client
        share = max(1, math.ceil(SHARE * self.total))
        if client.network != NOBODY.network and self._used_by[client.key] + more > share:
            return [other for other in self._holds if other.client.key == client.key]
        total = self.total if client.has_token else self.total - self._reserve
        return self._holds if self.used + more > total else None

    def _victim(self, rivals: Iterable[Hold]) -> Hold | None:
        latest = self._now() - self._patience_seconds
        silent = [
            (hold.has_token, -self._used_by[hold.client.key], hold.silent_since, hold)
            for hold in rivals
            if hold.amount and hold.silent_since is not None and hold.silent_since <= latest
        ]
        return min(silent, key=lambda known: known[:3], default=(None,))[-1]

    def _evict(self, hold: Hold) -> None:
        self._refusals.note(self._what, hold.client)
        hold.evicted = True
        self.release(hold)
        hold.on_evict()
