"""A limit that clients share: none can use it up, and who keeps the server waiting makes room."""

import collections
import contextlib
import math
import time
from collections.abc import Callable, Iterator

from serving.engine.clients import NOBODY, Client
from serving.errors import Overloaded
from serving.observability.refusals import Refusals

SHARE = 0.75  # of a limit that one client may hold
LITTLE, MUCH = 0.05, 0.2  # parts of a limit
RESERVE = 0.125  # of a limit that is kept for clients with a token, where one is needed

Key = tuple[str, bool]


class Hold:
    """What a connection, a call, a body or a stream has of a limit.

    on_evict: called when it must make room. evicted: whether it had to. silent_since: since when
    the server waits for the client; None while it does not.
    """

    def __init__(
        self,
        client: Client = NOBODY,
        on_evict: Callable[[], None] = lambda: None,
        limit: "SharedLimit | None" = None,
    ):
        self.client, self.on_evict, self._limit = client, on_evict, limit
        self.amount, self.evicted = 0, False
        self.silent_since: float | None = None

    def wait(self) -> None:
        """The server waits for the client from now on; a hold of nothing has nothing to give."""
        if self._limit is not None and self.amount and not self.evicted:
            self._limit.silence(self)

    def move_to(self, client: Client) -> None:
        """It is that of a client who is known better now."""
        if self._limit is not None and not self.evicted:
            self._limit.move(self, client)

    def work(self) -> None:
        """It does not any more."""
        if self._limit is not None:
            self._limit.end_silence(self)


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
        self._refusals, self._now, self._on_fall = refusals or Refusals(), now, on_fall
        self._used_by: collections.Counter[Key] = collections.Counter()
        self._silent: dict[Key, dict[Hold, None]] = {}  # of each client, the longest first
        self.used = self._peak = 0

    def hold(
        self, client: Client, amount: int = 0, on_evict: Callable[[], None] = lambda: None
    ) -> Hold:
        """A hold of so much, to be released; Overloaded where there is no room."""
        hold = Hold(client, on_evict, self)
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
        while more > 0 and not hold.evicted and not self._has_room(hold.client, more):
            victim = self._victim(hold.client, more)
            if victim is None:
                self._refusals.note(self._what, hold.client)
                raise Overloaded(f"There are too many {self._what} at once.")
            self._evict(victim)
        if hold.evicted:
            raise Overloaded(f"There are too many {self._what} at once, and this one was silent.")
        self._add(hold, more)

    def move(self, hold: Hold, client: Client) -> None:
        """See `Hold.move_to`."""
        amount, was_silent = hold.amount, hold.silent_since is not None
        self.release(hold)
        hold.client = client
        self._add(hold, amount)
        if was_silent:
            self.silence(hold)

    def release(self, hold: Hold) -> None:
        """Gives it back; nothing happens the second time."""
        self.end_silence(hold)
        self._add(hold, -hold.amount)

    def silence(self, hold: Hold) -> None:
        """See `Hold.wait`."""
        self.end_silence(hold)
        hold.silent_since = self._now()
        self._silent.setdefault(hold.client.key, {})[hold] = None

    def end_silence(self, hold: Hold) -> None:
        """See `Hold.work`."""
        hold.silent_since = None
        silent = self._silent.get(hold.client.key, {})
        if silent.pop(hold, self) is None and not silent:
            del self._silent[hold.client.key]

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

    def _is_over_share(self, client: Client, more: int) -> bool:
        share = max(1, math.ceil(SHARE * self.total))
        return client.network != NOBODY.network and self._used_by[client.key] + more > share

    def _has_room(self, client: Client, more: int) -> bool:
        total = self.total if client.has_token else self.total - self._reserve
        return self.used + more <= total and not self._is_over_share(client, more)

    def _victim(self, client: Client, more: int) -> Hold | None:
        """Who makes room: one's own hold where one's share is used up, else anybody's."""
        keys = [client.key] if self._is_over_share(client, more) else self._silent
        latest = self._now() - self._patience_seconds
        longest = [next(iter(self._silent[key])) for key in keys if key in self._silent]
        able = [hold for hold in longest if (hold.silent_since or 0.0) <= latest]
        return min(able, key=self._rank, default=None)

    def _rank(self, hold: Hold) -> tuple[bool, int, float]:
        used = self._used_by[hold.client.key]
        return hold.client.has_token, -used, hold.silent_since or 0.0

    def _evict(self, hold: Hold) -> None:
        self._refusals.note(self._what, hold.client)
        hold.evicted = True
        self.release(hold)
        hold.on_evict()
