"""The code over conditionals: an encoder knows all elements, a decoder asks for one after another.

`Conditionals` is all that a model offers; streams, files and their verification know no model.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from compression.stream import Channels, Decoder, Encoder, Layout, odds_of

Moved = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Coding:
    """How outputs of a network become distributions.

    Attributes:
      way: of the odds, one of `Conditionals.ways`.
      narrowest: of `forms.closed`; None: as in files of format version 1.
      tolerance: relative difference of the outputs, of an encoder; a decoder has None.
      moved: changes the outputs; None: they are as they are.
    """

    way: str = "closed"
    narrowest: float | None = None
    tolerance: float | None = None
    moved: Moved | None = None


class Known(NamedTuple):
    """Some pixels in the order of decoding, and their distributions given all before them.

    Attributes:
      levels: int64 [pixels, channels].
      channels: the distributions.
      class_: of the pixels, with steps of its own.
      calls: pixels in each of the decoder's calls that begin here.
    """

    levels: np.ndarray
    channels: Channels
    class_: int
    calls: Sequence[int]


class Conditionals(Protocol):
    """A model's distribution of every element given those before it.

    Attributes:
      levels: number of levels of an element.
      ways: in which the odds of levels can be computed, the best first.
    """

    levels: int
    ways: Sequence[str]

    def layout(self, shape: tuple[int, ...]) -> Layout:
        """Return the sizes of the stream of elements of a shape."""

    def is_cheap(self, shape: tuple[int, ...]) -> bool:
        """Return whether elements of a container's shape are read in a few seconds."""

    def known(self, levels: np.ndarray, condition: Any, coding: Coding) -> Iterator[Known]:
        """Yield all elements of a stream, from their levels int32, in the order of decoding."""

    def read(
        self, shape: tuple[int, ...], condition: Any, coding: Coding, decoder: Decoder
    ) -> np.ndarray:
        """Return the levels int32 of a shape; calls `decoder.pixels` in the order of `known`."""


def encode(conditionals: Conditionals, levels: np.ndarray, condition: Any, coding: Coding) -> bytes:
    """Return the stream of levels; arguments as for `Conditionals.known`."""
    layout = conditionals.layout(levels.shape)
    encoder = Encoder(layout)
    for known in conditionals.known(levels, condition, coding):
        odds, before = [], None
        for own in known.levels.T:
            odds.append(odds_of(known.channels(before), own, layout.depth))
            before = own
        encoder.add(odds, known.class_, known.calls)
    return encoder.finish()


def decode(
    conditionals: Conditionals,
    stream: bytes,
    shape: tuple[int, ...],
    condition: Any,
    coding: Coding,
) -> np.ndarray:
    """Return the levels of a stream; arguments as for `Conditionals.read`."""
    decoder = Decoder(stream, conditionals.layout(shape))
    return conditionals.read(shape, condition, coding, decoder)
