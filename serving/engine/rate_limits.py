"""How often a client may ask."""

import collections
import time
from collections.abc import Callable, Hashable

from serving.engine.auth import HEALTH_PREFIX
from serving.engine.clients import Address, network_of
from serving.errors import TooManyRequests

MAX_CLIENTS = 10_000
MINUTE_SECONDS = 60.0
UNLIMITED_PATHS = ("/healthz", "/readyz")


def is_unlimited(path: str) -> bool:
    """Whether a path or a gRPC method is a probe's, which nobody counts."""
    return path in UNLIMITED_PATHS or path.startswith(HEALTH_PREFIX)


class Buckets:
    """Of each key a bucket that holds `most`, and is filled steadily within a period.

    Args:
      now: seconds of a clock that never goes back.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic):
        self._now = now
        self._left: collections.OrderedDict[Hashable, tuple[float, float]]
        self._left = collections.OrderedDict()

    def __len__(self) -> int:
        return len(self._left)

    def wait_seconds(self, key: Hashable, amount: float, most: float, period: float) -> float:
        """Seconds until there is so much; 0 if there is."""
        missing = amount - self._filled(key, most, period)
        return missing * period / most if missing > 0 else 0.0

    def take(self, key: Hashable, amount: float, most: float, period: float) -> None:
        """Takes so much; what is not there is owed."""
        self._left[key] = self._filled(key, most, period) - amount, self._now()
        self._left.move_to_end(key)
        if len(self._left) > MAX_CLIENTS:
            self._left.popitem(last=False)

    def _filled(self, key: Hashable, most: float, period: float) -> float:
        now = self._now()
        left, at = self._left.get(key, (most, now))
        return min(most, left + (now - at) * most / period)


class RateLimiter:
    """A minute's worth of requests for each client.

    Args:
      per_minute: 0: no limit. now: seconds of a clock that never goes back.
    """

    def __init__(self, per_minute: int, now: Callable[[], float] = time.monotonic):
        self._per_minute, self._buckets = per_minute, Buckets(now)

    def check(self, path: str, client: Address) -> None:
        """TooManyRequests, with when to come again, for a client over its limit."""
        if not self._per_minute or is_unlimited(path):
            return
        key = network_of(client[0]) if client else ""
        one_of = (key, 1, self._per_minute, MINUTE_SECONDS)
        if seconds := self._buckets.wait_seconds(*one_of):
            words = f"A client may send {self._per_minute} requests a minute."
            raise TooManyRequests(words, seconds)
        self._buckets.take(*one_of)
