"""Two calls timed turn by turn, so that a slow spell of the machine hits both."""

import statistics
import time
from collections.abc import Callable

Call = Callable[[], object]


class PairedTiming:
    """A call and another; each measurement times both, one after the other and back, many times.

    seconds: of the first and the second call, medians of the last measurement.
    """

    def __init__(self, first: Call, second: Call, least_seconds: float):
        self._calls, self._least_seconds = (first, second), least_seconds
        self.seconds = (0.0, 0.0)

    def prepare(self) -> None:
        """Makes the first calls, which compile."""
        for call in self._calls:
            call()

    def measure(self) -> tuple[float, float]:
        """`seconds`, measured anew, for at least as long as was asked for."""
        taken: tuple[list[float], list[float]] = ([], [])
        end = time.perf_counter() + self._least_seconds
        while not taken[0] or time.perf_counter() < end:
            for k in (0, 1, 1, 0):  # what one leaves in the caches, the other does not always meet
                start = time.perf_counter()
                self._calls[k]()
                taken[k].append(time.perf_counter() - start)
        self.seconds = (statistics.median(taken[0]), statistics.median(taken[1]))
        return self.seconds
