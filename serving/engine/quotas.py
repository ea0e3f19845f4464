"""What those who bear a token may use: requests a minute, seconds of sound and images a day."""

import math

from serving.engine.rate_limits import MINUTE_SECONDS, Buckets
from serving.engine.tokens import Token
from serving.errors import TooLarge, TooManyRequests
from serving.observability.metrics import Metrics

DAY_SECONDS = 86_400.0
PERIODS = {  # seconds in which what was used comes back, and the words for what is counted
    "requests_per_minute": (MINUTE_SECONDS, "requests a minute"),
    "sound_seconds_per_day": (DAY_SECONDS, "seconds of sound a day"),
    "images_per_day": (DAY_SECONDS, "images a day"),
}


class Quota:
    """What a request that bears a token may use, and says that it used.

    It is counted in memory: a server that begins anew begins with nothing used, and each of several
    servers counts for itself.

    Args:
      buckets: of all tokens. metrics: count by name.
    """

    def __init__(self, buckets: Buckets, metrics: Metrics, name: str, token: Token):
        self._buckets, self._metrics, self._name, self._token = buckets, metrics, name, token

    def check(self, limit: str, amount: float) -> None:
        """Raises TooManyRequests, with when to come again, where less than that is left.

        TooLarge for more than there can ever be. limit: of PERIODS.
        """
        most, (period, words) = getattr(self._token, limit), PERIODS[limit]
        seconds = 0.0
        if amount <= most < math.inf:
            seconds = self._buckets.wait_seconds((self._name, limit), amount, most, period)
        if amount <= most and not seconds:
            return
        self._metrics.token_refused(self._name, limit)
        if amount > most:
            raise TooLarge(f"This token is good for {most:g} {words}, got {amount:g} at once.")
        raise TooManyRequests(f"This token is good for {most:g} {words}.", seconds)

    def use(self, limit: str, amount: float) -> None:
        """Counts what was used; what others used meanwhile may make it more than there was."""
        most, (period, _) = getattr(self._token, limit), PERIODS[limit]
        if most < math.inf:
            self._buckets.take((self._name, limit), amount, most, period)
        self._metrics.token_used(self._name, limit, amount)
