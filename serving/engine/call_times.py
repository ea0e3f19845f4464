"""How long calls take, from those that were made."""

import collections
from collections.abc import Hashable

REMEMBERED = 8  # calls of a kind
MAX_KINDS = 256
MAX_STEP = 8.0  # times the cost of a kind that was called, for one that was not


class CallTimes:
    """Seconds that a row takes, by the kind of call: its signature and its shapes.

    It is the least of the last calls: what it says cannot be met would not have been met. A kind
    that was called once is not known, since that call may have compiled: were it believed, it would
    refuse the calls that show how fast the kind is.
    """

    def __init__(self) -> None:
        self._seconds: collections.OrderedDict[Hashable, tuple[str, float, collections.deque]] = (
            collections.OrderedDict()
        )

    def note(self, kind: Hashable, signature: str, cost: float, seconds_per_row: float) -> None:
        """Remembers a call; cost: of one of its rows."""
        self._seconds.setdefault(kind, (signature, cost, collections.deque(maxlen=REMEMBERED)))
        self._seconds.move_to_end(kind)
        self._seconds[kind][2].append(seconds_per_row)
        if len(self._seconds) > MAX_KINDS:
            self._seconds.popitem(last=False)

    def seconds_per_row(self, kind: Hashable, signature: str, cost: float) -> float:
        """Of a kind that was called twice, or as its cost is to that of the next smaller one; 0.0
        where nothing like it was called yet."""
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
