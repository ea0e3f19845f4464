"""What a server sends piece by piece, sound in chunks and images scale by scale, and is sent."""

import dataclasses
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, Generic, Self, TypeVar

import numpy as np

from replicator.runs.errors import UserError

Chunk = TypeVar("Chunk")


@dataclasses.dataclass(frozen=True)
class ImageScale:
    """An image at one of its scales.

    image: which, from 0. side: in pixels. last: whether this is the image itself. pixels: uint8
    [side, side, channels].
    """

    image: int
    side: int
    last: bool
    pixels: np.ndarray


class Stream(Generic[Chunk]):
    """An iterator of what comes, piece by piece.

    `close` it, or use it in `with`, where reading stops before the end: the server then stops too.
    """

    def __init__(self, chunks: Generator[Chunk, None, None], leave: Callable[[], None]):
        self._pieces, self._leave = chunks, leave

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        return next(self._pieces)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the response; the server stops."""
        self._pieces.close()
        self._leave()  # a generator that was never begun has nothing to close


class Speech(Stream[np.ndarray]):
    """Sound as it comes: chunks float32 [samples], at `sample_rate_hz`."""

    def __init__(
        self,
        chunks: Generator[np.ndarray, None, None],
        leave: Callable[[], None],
        sample_rate_hz: int,
    ):
        super().__init__(chunks, leave)
        self.sample_rate_hz = sample_rate_hz


def whole_images(scales: Iterable[ImageScale]) -> Iterator[list[np.ndarray]]:
    """For each image all its scales, the smallest first, once the last of them has come."""
    pixels: list[np.ndarray] = []
    for scale in scales:
        pixels.append(scale.pixels)
        if scale.last:
            yield pixels
            pixels = []


def scales_of(outputs: Mapping[str, np.ndarray], row: int) -> list[np.ndarray]:
    """The scales of one image of a batch, the smallest first, the whole image last."""
    whole = outputs["picture"][row]
    scales = [value[row] for name, value in outputs.items() if name.startswith("picture_")]
    smaller = [pixels for pixels in scales if len(pixels) < len(whole)]
    return [*sorted(smaller, key=len), whole]


def check_numbers(arguments: Mapping[str, Any]) -> None:
    """Raise UserError for numbers that no JSON can hold."""
    for name in ("temperature", "seconds", "guidance", "frames", "map"):
        value = arguments.get(name)
        if value is not None and not np.isfinite(numbers := np.asarray(value, float)).all():
            wrong = numbers[~np.isfinite(numbers)].flat[0]
            raise UserError(f"`{name}` must be finite, got {wrong:g}.")
