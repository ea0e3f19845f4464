"""Deadlines, and trying again until them."""

import dataclasses
import random
import time
from collections.abc import Callable
from typing import TypeVar

from replicator.runs.errors import UserError

FIRST_SECONDS, LONGEST_SECONDS = 0.1, 5.0  # between two attempts
Answer = TypeVar("Answer")


class ClientError(UserError):
    """A request that was not answered; one line says why.

    code: a short word for programs, as in serving/errors.py, or `unreachable` where there is no
    server, or `protocol` where what answers is no server of these models.
    """

    def __init__(self, message: str, code: str):
        super().__init__(" ".join(message.split()))
        self.code = code


def token_error(address: str, has_token: bool) -> ClientError:
    """The error of a server that does not let this client in."""
    problem = "refuses the token" if has_token else "wants a token"
    return ClientError(
        f"{address} {problem} (the command reads it from ONEPASS_TOKEN).", "unauthorized"
    )


class Retry(Exception):  # noqa: N818 - no error until it is given up
    """An attempt that may be worth repeating.

    error: what to raise where it is not repeated. after_seconds: that the server asked for.
    """

    def __init__(self, error: ClientError, after_seconds: float = 0.0):
        super().__init__(str(error))
        self.error, self.after_seconds = error, after_seconds


class Deadline:
    """A point in time, `seconds` from now."""

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic):
        if not seconds > 0:
            raise UserError(f"`timeout_seconds` must be positive, got {seconds:g}.")
        self.seconds, self._now = seconds, now
        self._end = now() + seconds

    def left(self) -> float:
        """Seconds until it; ClientError once it has passed."""
        left = self._end - self._now()
        if left <= 0:
            raise self.passed()
        return left

    def passed(self) -> ClientError:
        """The error of one that has passed."""
        return ClientError(f"No answer came within {self.seconds:g} s.", "deadline_exceeded")


@dataclasses.dataclass(frozen=True)
class Retrying:
    """Repeats attempts, with pauses that double and are shortened at random so that clients which
    failed together do not come back together.

    retries: attempts after the first. sleep, shorten: for tests; `shorten` gives a factor.
    """

    retries: int
    sleep: Callable[[float], None] = time.sleep
    shorten: Callable[[], float] = lambda: random.uniform(0.5, 1.0)

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise UserError(f"`retries` must be at least 0, got {self.retries}.")

    def do(self, attempt: Callable[[], Answer], deadline: Deadline) -> Answer:
        """What an attempt returns that does not raise Again.

        Raises the last error when the retries are used up or the next would begin after the
        deadline. A pause is never shorter than what the server asked for.
        """
        for number in range(self.retries + 1):
            try:
                return attempt()
            except Retry as retry:
                pause = self.shorten() * min(LONGEST_SECONDS, FIRST_SECONDS * 2**number)
                pause = max(pause, retry.after_seconds)
                if number == self.retries or pause >= deadline.left():
                    raise retry.error from None
                self.sleep(pause)
        raise ValueError("`retries` must be at least 0.")
