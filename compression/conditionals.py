"""Encoding and decoding by conditional distributions, all at once or one element after another.

`Conditionals` is all that a model must offer; streams, files and their verification know no model.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from compression.stream import Channels, Decoder, Encoder, Layout, odds_of

Moved = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Coding:
    """The way in which a network's outputs become distributions.

    Attributes:
      way: the way in which odds are computed, one of `Conditionals.ways`.
      narrowest: the argument `narrowest` of `forms.closed`; None: components have the least scale
        of format version 1.
      tolerance: the largest relative difference of a decoder's outputs that an encoder allows; None
        in a decoder.
      moved: function that changes the outputs, for tests of the tolerance; None: no change.
    """

    way: str = "closed"
    narrowest: float | None = None
    tolerance: float | None = None
    moved: Moved | None = None


class Known(NamedTuple):
    """Pixels in the order of decoding, and their distributions given all pixels before them.

    Attributes:
      levels: the pixels' levels, int64 [pixels, channels].
      channels: function from the levels of the channel before to a channel's distributions.
      class_: the number of the pixels' class, which has rounding steps of its own.
      calls: number of pixels in each of the decoder's calls for these pixels.
    """

    levels: np.ndarray
    channels: Channels
    class_: int
    calls: Sequence[int]


class Conditionals(Protocol):
    """A model's distribution of every element given those before it.

    Attributes:
      levels: number of levels of an element.
      ways: the ways in which the odds of levels can be computed, the best first.
    """

    levels: int
    ways: Sequence[str]

    def layout(self, shape: tuple[int, ...]) -> Layout:
        """Return the layout of the stream of elements of a shape."""

    def is_cheap(self, shape: tuple[int, ...]) -> bool:
        """Return whether elements of a container's shape can be decoded in a few seconds."""

    def known(self, levels: np.ndarray, condition: Any, coding: Coding) -> Iterator[Known]:
        """Yield all elements of a stream in the order of decoding, given their levels int32."""

    def read(
        self, shape: tuple[int, ...], condition: Any, coding: Coding, decoder: Decoder
    ) -> np.ndarray:
        """Return levels int32 of a shape, which `decoder` decodes in the order of `known`.

        Args:
          shape: shape of the elements.
          condition: what the model reads besides the elements, or None.
          coding: the way in which odds are computed.
          decoder: the decoder, whose `pixels` returns the next levels, given their distributions.
        """


def encode(conditionals: Conditionals, levels: np.ndarray, condition: Any, coding: Coding) -> bytes:
    """Return the stream of levels.

    Args:
      conditionals: the model's distributions.
      levels: the elements' levels, int32, one row or image per entry of the first axis.
      condition: what the model reads besides the elements, or None.
      coding: the way in which odds are computed, and the tolerance of the outputs.
    """
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
    """Return the levels of a stream, int32.

    Args:
      conditionals: the distributions of the model that encoded the stream.
      stream: the bytes that `encode` returned.
      shape: the shape of the levels.
      condition: what the model read besides the elements, or None.
      coding: the way in which odds are computed.

    Raises:
      UserError: the stream is damaged.
    """
    decoder = Decoder(stream, conditionals.layout(shape))
    return conditionals.read(shape, condition, coding, decoder)
