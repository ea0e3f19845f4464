"""Calls to a server: deadlines, retries until a deadline, and streamed responses."""

import dataclasses
import json
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, Generic, Self, TypeVar

import numpy as np
import stamina

from onepass.foundation.rules import Checked, Natural, UserError, require

FIRST_SECONDS, LONGEST_SECONDS = 0.1, 5.0  # pause between two attempts
Answer = TypeVar("Answer")
Cancel = Callable[[], object]
Chunk = TypeVar("Chunk")


class ClientError(UserError):
    """A failed request, with a one-line message.

    Its `code` is one of onepass/bundles/errors.py, `too_many_requests`, `unreachable` if there is
    no server, `broken_off` if the connection ended early, or `protocol` if the server is of another
    kind.
    """

    def __init__(self, message: str, code: str):
        super().__init__(" ".join(message.split()))
        self.code = code


def token_error(address: str, has_token: bool) -> ClientError:
    """Return the error for a server that rejects the client's token, or that requires one."""
    problem = "rejects the token" if has_token else "requires a token"
    return ClientError(
        f"{address} {problem} (the command reads it from ONEPASS_TOKEN).", "unauthorized"
    )


def strict_json(text: str | bytes) -> Any:
    """Parse JSON; raise ValueError if it is invalid, also for NaN and Infinity."""

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


class RetryableError(Exception):
    """A failed attempt that may be repeated, after the seconds that the server asked for, or 0."""

    def __init__(self, error: ClientError, after_seconds: float = 0.0):
        super().__init__(str(error))
        self.error, self.after_seconds = error, after_seconds


class Deadline:
    """A deadline `seconds` after its creation; raises UserError unless `seconds` is positive."""

    def __init__(self, seconds: float):
        require(seconds > 0, "timeout_seconds", "above 0", f"{seconds:g}")
        self.seconds, self._end = seconds, time.monotonic() + seconds

    def count_seconds(self) -> float:
        """Return the seconds until the deadline; raise ClientError if it has passed."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise self.timeout_error()
        return left

    def timeout_error(self) -> ClientError:
        """Return the error for a deadline that has passed."""
        return ClientError(f"No response within {self.seconds:g} s.", "deadline_exceeded")


@dataclasses.dataclass(frozen=True)
class Retrying(Checked):
    """A retry policy with pauses that double and have jitter, or are as long as the server asks."""

    retries: Natural

    def do(self, attempt: Callable[[], Answer], deadline: Deadline) -> Answer:
        """Call `attempt` until it does not raise RetryableError, and return its result."""

        def pause(error: Exception) -> bool | float:
            if (
                not isinstance(error, RetryableError)
                or error.after_seconds >= deadline.count_seconds()
            ):
                return False
            return error.after_seconds or True

        trials = stamina.retry_context(
            pause,
            attempts=self.retries + 1,
            timeout=deadline.seconds,
            wait_initial=FIRST_SECONDS,
            wait_jitter=FIRST_SECONDS,
            wait_max=min(LONGEST_SECONDS, deadline.count_seconds()),
        )
        try:
            for trial in trials:
                with trial:
                    return attempt()
        except RetryableError as retryable:
            raise retryable.error from None
        raise deadline.timeout_error()


@dataclasses.dataclass(frozen=True)
class ImageScale:
    """Image `image` of a request at one scale: uint8 [side, side, channels]."""

    image: int
    side: int
    last: bool
    pixels: np.ndarray


class Stream(Generic[Chunk]):
    """An iterator over the chunks of a response; `close` or `with` also stops the server early."""

    def __init__(self, chunks: Generator[Chunk, None, None], cancel: Cancel):
        self._chunks, self._cancel = chunks, cancel

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        return next(self._chunks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the response, which makes the server stop."""
        self._chunks.close()
        self._cancel()  # closing a generator that was not started does nothing


class Speech(Stream[np.ndarray]):
    """Audio in chunks, float32 [samples], at `sample_rate_hz`."""

    def __init__(self, chunks: Generator[np.ndarray, None, None], cancel: Cancel, rate_hz: int):
        super().__init__(chunks, cancel)
        self.sample_rate_hz = rate_hz


def whole_images(scales: Iterable[ImageScale]) -> Iterator[list[np.ndarray]]:
    """Yield the list of each image's scales, smallest first, when its last scale has arrived."""
    pixels: list[np.ndarray] = []
    for scale in scales:
        pixels.append(scale.pixels)
        if scale.last:
            yield pixels
            pixels = []


def check_numbers(arguments: Mapping[str, Any]) -> None:
    """Raise UserError if an argument contains NaN or infinity, which JSON cannot represent."""
    for name in ("temperature", "seconds", "guidance", "frames", "map"):
        value = arguments.get(name)
        if value is not None and not np.isfinite(numbers := np.asarray(value, float)).all():
            wrong = numbers[~np.isfinite(numbers)].flat[0]
            raise UserError(f"`{name}` must be finite, got {wrong:g}.")
