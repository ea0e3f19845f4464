"""Measure the rate of training steps for the log."""

import contextlib
import time
from collections.abc import Iterator


class StepRate:
    """Steps per second, excluding the time between steps and the first step, which compiles.

    with rate.running():
        metrics = step(next(batches))
    rate.since_last()  # {"steps_per_second": 12.5}
    """

    def __init__(self) -> None:
        self._steps, self._seconds = -1, 0.0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Measure a step and the wait for its batch."""
        start = time.perf_counter()
        yield
        self._steps += 1
        if self._steps:
            self._seconds += time.perf_counter() - start

    def since_last(self) -> dict[str, float]:
        """Return "steps_per_second" since the last call; {} if no steps were measured."""
        steps, seconds = self._steps, self._seconds
        self._steps, self._seconds = 0, 0.0
        return {"steps_per_second": steps / seconds} if seconds > 0 else {}
