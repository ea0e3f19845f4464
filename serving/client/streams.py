"""Streamed responses, audio in chunks and images scale by scale, and checks of their requests."""

import dataclasses
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, Generic, Self, TypeVar

import numpy as np

from onepass.foundation.errors import UserError

Cancel = Callable[[], object]
Chunk = TypeVar("Chunk")


@dataclasses.dataclass(frozen=True)
class ImageScale:
    """An image at one of its scales.

    Attributes:
      image: index of the image in the request, starting at 0.
      last: whether this is the final scale.
      pixels: uint8 [side, side, channels].
    """

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
