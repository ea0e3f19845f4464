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
    """The rules by which a network's outputs become the distributions that code a stream."""

    way: str = "closed"  # how odds are computed, one of `Conditionals.ways`
    narrowest: float | None = None  # of `odds.closed_form`; None: as in format version 1
    # Largest relative difference of the outputs, between encoder and decoder, for which the encoder
    # leaves margins; None in a decoder.
    tolerance: float | None = None
    moved: Moved | None = None  # changes the outputs, to verify the tolerance


class Known(NamedTuple):
    """Pixels in the order of decoding, with their distributions given all preceding pixels."""

    levels: np.ndarray  # the pixels' levels, int64 [pixels, channels]
    channels: Channels  # maps a channel's levels (first: None) to the next channel's distributions
    class_: int
    calls: Sequence[int]  # pixels in each of the decoder's calls that will decode these


class Conditionals(Protocol):
    """A model's distribution of every element given the elements before it."""

    levels: int
    ways: Sequence[str]  # how the odds of levels can be computed, the best way first

    def layout(self, shape: tuple[int, ...]) -> Layout:
        """Return the layout of the stream for elements of this shape."""

    def is_cheap(self, shape: tuple[int, ...]) -> bool:
        """Return whether elements of this container shape can be decoded in a few seconds."""

    def iterate_elements(
        self, levels: np.ndarray, condition: Any, coding: Coding
    ) -> Iterator[Known]:
        """Yield all elements of a stream, given their int32 levels, in the order of decoding."""

    def read(
        self, shape: tuple[int, ...], condition: Any, coding: Coding, decoder: Decoder
    ) -> np.ndarray:
        """Decode int32 levels from `decoder.pixels`, in the order of `iterate_elements`."""


def encode(
    conditionals: Conditionals,
    levels: np.ndarray,
    condition: Any,
    coding: Coding,
    advance: Advance = silent,
) -> bytes:
    """Encode levels as one stream; raise UserError for a level of probability zero."""
    layout, done = conditionals.layout(levels.shape), 0
    encoder = Encoder(layout)
    for known in conditionals.iterate_elements(levels, condition, coding):
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
    """Decode a stream to levels, int32; raise UserError if it is damaged."""
    decoder = Decoder(stream, conditionals.layout(shape), advance)
    return conditionals.read(shape, condition, coding, decoder)
