"""Times that past calls of a model took, by kind of call."""

import collections
from collections.abc import Hashable

REMEMBERED = 8  # calls remembered per kind
MAX_KINDS = 256
MAX_STEP = 8.0  # largest ratio of costs between a kind and the kind it is estimated from


class CallTimes:
    """Seconds per row for each kind of call, that is, for each signature and its shapes.

    The estimate is the minimum over recent calls, so only hopeless requests are rejected. A kind
    that was called only once counts as unknown: that call may have included compilation, and its
    time could lead to the rejection of the calls that would show how fast the kind is.
    """

    def __init__(self) -> None:
        self._seconds: collections.OrderedDict[Hashable, tuple[str, float, collections.deque]] = (
            collections.OrderedDict()
        )

    def note(self, kind: Hashable, signature: str, cost: float, seconds_per_row: float) -> None:
        """Record the seconds per row of a call, and the cost of one of its rows."""
        self._seconds.setdefault(kind, (signature, cost, collections.deque(maxlen=REMEMBERED)))
        self._seconds.move_to_end(kind)
        self._seconds[kind][2].append(seconds_per_row)
        if len(self._seconds) > MAX_KINDS:
            self._seconds.popitem(last=False)

    def seconds_per_row(self, kind: Hashable, signature: str, cost: float) -> float:
        """Return the estimate for a kind; 0.0 if it is unknown.

        A kind that was never called is estimated from the next cheaper known kind of the same
        signature, in proportion to cost, if that is not too much cheaper.
        """
        called = {known: each for known, each in self._seconds.items() if len(each[2]) > 1}
        if kind in self._seconds:
            return min(called[kind][2]) if kind in called else 0.0
        smaller = [
            (known, min(seconds))
            for name, known, seconds in called.values()
            if name == signature and known <= cost <= MAX_STEP * known
        ]
        known, seconds = max(smaller, default=(1.0, 0.0))
        return seconds * cost / known
