"""Encoding and decoding with conditional distributions, in one pass or element by element.

All that a model must provide is its `Conditionals`; streams, files and verification are shared.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from onepass.compression.stream import (
    Advance,
    Channels,
    Decoder,
    Distribution,
    Encoder,
    Layout,
    odds_of,
    silent,
)
from onepass.foundation.errors import UserError

Moved = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Coding:
    """The rules by which a network's outputs become the distributions that code a stream.

    Attributes:
      way: how odds are computed, one of `Conditionals.ways`.
      narrowest: the argument `narrowest` of `forms.closed`; None: as in format version 1.
      tolerance: largest relative difference of the outputs, between encoder and decoder, for which
        the encoder leaves margins; None in a decoder.
      moved: function that changes the outputs, to verify the tolerance; None: no change.
    """

    way: str = "closed"
    narrowest: float | None = None
    tolerance: float | None = None
    moved: Moved | None = None


class Known(NamedTuple):
    """Pixels in the order of decoding, with their distributions given all preceding pixels.

    Attributes:
      levels: the pixels' levels, int64 [pixels, channels].
      channels: function from a channel's levels to the next channel's distributions; None gives the
        first channel's.
      class_: number of the pixels' class; each class has its own rounding steps.
      calls: number of pixels in each of the decoder's calls that will decode these pixels.
    """

    levels: np.ndarray
    channels: Channels
    class_: int
    calls: Sequence[int]


class Conditionals(Protocol):
    """A model's distribution of every element given the elements before it.

    Attributes:
      levels: number of levels of an element.
      ways: how the odds of levels can be computed, the best way first.
    """

    levels: int
    ways: Sequence[str]

    def layout(self, shape: tuple[int, ...]) -> Layout:
        """Return the layout of the stream for elements of this shape."""

    def is_cheap(self, shape: tuple[int, ...]) -> bool:
        """Return whether elements of this container shape can be decoded in a few seconds."""

    def known(self, levels: np.ndarray, condition: Any, coding: Coding) -> Iterator[Known]:
        """Yield all elements of a stream, given their int32 levels, in the order of decoding."""

    def read(
        self, shape: tuple[int, ...], condition: Any, coding: Coding, decoder: Decoder
    ) -> np.ndarray:
        """Decode and return levels, int32, in the order of `known`.

        Args:
          shape: shape of the levels.
          condition: what the model reads besides the elements, or None.
          coding: how odds are computed.
          decoder: decoder whose `pixels` returns the next levels, given their distributions.
        """


def encode(
    conditionals: Conditionals,
    levels: np.ndarray,
    condition: Any,
    coding: Coding,
    advance: Advance = silent,
) -> bytes:
    """Encode levels as one stream.

    Args:
      conditionals: the model's distributions.
      levels: the elements' levels, int32; the first axis is the batch axis.
      condition: what the model reads besides the elements, or None.
      coding: how odds are computed, and the tolerance of the outputs.
      advance: function that is called with the number of elements whose odds have been computed.

    Raises:
      UserError: an element has the probability zero, an output of the network is not finite, or
        `constriction` is not installed.
    """
    layout, done = conditionals.layout(levels.shape), 0
    encoder = Encoder(layout)
    for known in conditionals.known(levels, condition, coding):
        odds, before = [], None
        for own in known.levels.T:
            distribution = known.channels(before)
            _check_possible(conditionals, distribution, own, levels.shape, done)
            odds.append(odds_of(distribution, own, layout.depth))
            before = own
        encoder.add(odds, known.class_, known.calls)
        done += len(known.levels)
        advance(known.levels.size)
    return encoder.finish()


def _check_possible(
    conditionals: Conditionals,
    distribution: Distribution,
    own: np.ndarray,
    shape: tuple[int, ...],
    done: int,
) -> None:
    """Raise UserError if the model gives one of these levels the probability zero."""
    forbids = getattr(distribution, "forbids", None)
    places = np.flatnonzero(forbids(own)) if forbids else np.zeros(0, np.int64)
    if len(places):
        number = done + int(places[0])
        place = getattr(conditionals, "place", lambda *_: number)(shape, number)
        raise UserError(
            "`elements` must be possible under the model to compress them, which gives the"
            f" probability zero to the level {own[places[0]]} at {place}."
        )


def decode(
    conditionals: Conditionals,
    stream: bytes,
    shape: tuple[int, ...],
    condition: Any,
    coding: Coding,
    advance: Advance = silent,
) -> np.ndarray:
    """Decode a stream to levels, int32.

    Args:
      conditionals: the distributions of the model that encoded the stream.
      stream: the bytes that `encode` returned.
      shape: the shape of the levels.
      condition: what the model read besides the elements, or None.
      coding: how odds are computed.
      advance: function that is called with the number of elements that have been decoded.

    Raises:
      UserError: the stream is damaged, an output of the network is not finite, or `constriction` is
        not installed.
    """
    decoder = Decoder(stream, conditionals.layout(shape), advance)
    return conditionals.read(shape, condition, coding, decoder)
