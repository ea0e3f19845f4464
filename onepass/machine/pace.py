"""`Pace`: the choice between two ways to run a program, by their speed so far."""

import collections
import statistics

_PIECES_BETWEEN_TRIALS = 32


class Pace:
    """The decision whether threads work on one piece together, which does not affect results.

    That is faster if there are idle cores and work to share. The first pieces try both ways `RUNS`
    times each; later the slower way is tried again at regular intervals. The medians of the latest
    runs are compared, which makes the decision robust to interruptions.

    Attributes:
      is_trial: whether the piece chosen last is one to measure, which should be short.
    """

    RUNS = 5

    def __init__(self) -> None:
        self.is_trial = True
        self._pieces = 0
        self._seconds: dict[bool, collections.deque[float]] = {
            way: collections.deque(maxlen=self.RUNS) for way in (True, False)
        }

    @property
    def is_settled(self) -> bool:
        """Return whether both ways have been measured `RUNS` times."""
        return all(len(seconds) == self.RUNS for seconds in self._seconds.values())

    def choose(self) -> bool:
        """Return whether threads should work together on the next piece."""
        together, apart = list(self._seconds[True]), list(self._seconds[False])
        self.is_trial = min(len(together), len(apart)) < self.RUNS
        if self.is_trial:
            return len(together) < len(apart)
        self._pieces += 1
        self.is_trial = self._pieces % _PIECES_BETWEEN_TRIALS == 0
        faster = statistics.median(together) <= statistics.median(apart)
        return faster != self.is_trial

    def record(self, together: bool, seconds: float, steps: int) -> None:
        """Record the time that a piece took."""
        if steps:
            self._seconds[together].append(seconds / steps)
