"""How often a client may ask."""

import collections
import time
from collections.abc import Callable

from serving.engine.auth import HEALTH_PREFIX
from serving.engine.clients import Address, network_of
from serving.errors import TooManyRequests

MAX_CLIENTS = 10_000
UNLIMITED_PATHS = ("/healthz", "/readyz")


class RateLimiter:
    """A bucket of requests for each client, a minute's worth, that fills up steadily.

    Args:
      per_minute: 0: no limit. now: seconds of a clock that never goes back.
    """

    def __init__(self, per_minute: int, now: Callable[[], float] = time.monotonic):
        self._per_minute, self._now = per_minute, now
        self._buckets: collections.OrderedDict[str, tuple[float, float]] = collections.OrderedDict()

    def check(self, path: str, client: Address) -> None:
        """TooManyRequests, with when to come again, for a client over its limit."""
        is_unlimited = path in UNLIMITED_PATHS or path.startswith(HEALTH_PREFIX)
        if not self._per_minute or is_unlimited:
            return
        key = network_of(client[0]) if client else ""
        now = self._now()
        left, at = self._buckets.pop(key, (float(self._per_minute), now))
        left = min(self._per_minute, left + (now - at) * self._per_minute / 60.0)
        allowed = left >= 1.0
        self._buckets[key] = (left - allowed, now)
        if len(self._buckets) > MAX_CLIENTS:
            self._buckets.popitem(last=False)
        if not allowed:
            raise TooManyRequests(
                f"A client may send {self._per_minute} requests a minute.",
                (1.0 - left) * 60.0 / self._per_minute,
            )
