"""Levels in an entropy-coded stream, by distributions that encoder and decoder know nearly alike.

The rounding of odds (`rounding`) makes integers of them on which both agree, and `constriction`
(Bamler 2022, "Understanding Entropy Coding With Asymmetric Numeral Systems", arXiv 2201.01741)
codes by these with asymmetric numeral systems. A stream is

    choice bits, uint8 | pixels in a group, uint16 | a step for each class and bit, 4 bits each |
    words, uint32: the choice of every group, then the bits of all pixels

where a pixel is one element, or a few channels of one that are coded in turn. Those of one call are
coded together: channel by channel, of each the highest bits of all pixels first.
"""

import dataclasses
import math
import struct
from typing import Any, NamedTuple, Protocol

import numpy as np

from compression.rounding import MOST_CHOICE_BITS, STEPS, best_step, choose, rounded
from compression.splits import Split
from replicator.runs.errors import UserError

_HEAD = struct.Struct("<BH")
_TRIED = 1 << 14  # odds of a class and bit, for the choice of a step
# Odds of a group that lie too near a border, in the mean: the more, the better choices pay, and the
# longer it takes to find one that fits, which one in e^n does.
_NEAR_IN_GROUP = 3.2
_SPARE_CHOICE_BITS = 7  # so that a few fit, of which one has a short code
_LARGEST_GROUP = 2**16 - 1


class Distribution(Protocol):
    """Distributions of elements, `Mixture` or `Categorical`."""

    def split(self, low: np.ndarray, half: int, whole: int) -> Split:
        """Returns the odds of bits."""


class Odds(NamedTuple):
    """All bits of pixels: t, margin float64, bit uint8, [pixels, channels * depth] each."""

    t: np.ndarray
    margin: np.ndarray
    bit: np.ndarray


@dataclasses.dataclass(frozen=True)
class Layout:
    """What encoder and decoder know of a stream before it is read.

    depth: bits of a level. channels: of a pixel. classes: of pixels, each with its own steps.
    pixels: in all.
    """

    depth: int
    channels: int
    classes: int
    pixels: int

    @property
    def bits(self) -> int:
        """Bits of a pixel."""
        return self.depth * self.channels


def depth_of(levels: int) -> int:
    """Returns the bits of a level."""
    return max(1, (levels - 1).bit_length())


def odds_of(distribution: Distribution, levels: np.ndarray, depth: int) -> Odds:
    """Returns the odds of all bits of known levels [pixels] of one channel."""
    levels, low = levels.astype(np.int64), np.zeros(len(levels), np.int64)
    bits = (levels[:, None] >> np.arange(depth - 1, -1, -1)) & 1
    splits = []
    for i in range(depth):
        half = 1 << (depth - 1 - i)
        splits.append(distribution.split(low, half, 1 << depth))
        low = low + half * bits[:, i]
    t, margin = (np.stack([split[k] for split in splits], 1) for k in range(2))
    return Odds(t, margin, bits.astype(np.uint8))


class Encoder:
    """Takes the odds of pixels, in the order in which a decoder asks for them."""

    def __init__(self, layout: Layout):
        self.layout = layout
        self._odds: list[Odds] = []
        self._classes: list[np.ndarray] = []
        self._calls: list[int] = []

    def add(self, channels: list[Odds], class_: int, calls: int) -> None:
        """Adds pixels of one class that a decoder asks for in calls of equally many.

        channels: the odds of each channel, of the pixels of all calls.
        """
        self._odds.append(
            Odds(*(np.concatenate(arrays, 1) for arrays in zip(*channels, strict=True)))
        )
        pixels = len(channels[0].t)
        self._classes.append(np.full(pixels, class_))
        self._calls += [pixels // calls] * calls

    def finish(self) -> bytes:
        """Returns the stream."""
        odds = Odds(*(np.concatenate(arrays) for arrays in zip(*self._odds, strict=True)))
        classes, bits = np.concatenate(self._classes), self.layout.bits
        table = self._steps(odds, classes)
        steps = table[classes]
        group, choice_bits = self._groups(odds, steps)
        choices = choose(*odds, steps, group, choice_bits)[0]
        place = np.arange(odds.t.size)
        each = choices[place // (group * bits)]
        flat = (odds.t.ravel(), steps.ravel(), each, place % (group * bits))
        order, ones = self._coding_order(), rounded(*flat, choice_bits)
        # A stack, whose last symbols are read first; a range coder would lose 1e-4 bits a symbol.
        coder = _constriction().stream.stack.AnsCoder()
        coder.encode_reverse(odds.bit.ravel()[order].astype(np.int32), _bit_model(), ones[order])
        coder.encode_reverse(choices.astype(np.int32), _choice_model(choice_bits))
        words = coder.get_compressed().astype("<u4").tobytes()
        return _HEAD.pack(choice_bits, group) + _packed(table) + words

    def _steps(self, odds: Odds, classes: np.ndarray) -> np.ndarray:
        """The place in STEPS for each class and bit, int64 [classes, bits]."""
        table = np.zeros([self.layout.classes, self.layout.bits], np.int64)
        for class_ in range(self.layout.classes):
            rows = np.flatnonzero(classes == class_)
            rows = rows[:: 1 + len(rows) // _TRIED]
            for i in range(self.layout.bits):
                table[class_, i] = best_step(*(array[rows, i] for array in odds))
        return table

    def _groups(self, odds: Odds, steps: np.ndarray) -> tuple[int, int]:
        """Pixels in a group, and bits of a choice: enough choices that some fit a group."""
        near = np.minimum(1.0, 2.0 * odds.margin / (STEPS[steps] / 1024.0)).sum()
        groups = max(1, round(near / _NEAR_IN_GROUP))
        group = min(-(-len(odds.t) // groups), _LARGEST_GROUP)
        expected = near * group / len(odds.t)
        bits = math.ceil(expected * math.log2(math.e)) + _SPARE_CHOICE_BITS
        return group, min(bits, MOST_CHOICE_BITS)

    def _coding_order(self) -> np.ndarray:
        """Of each bit in the order of coding, its place in [pixels, bits]."""
        parts, first, bits = [], 0, self.layout.bits
        for size in self._calls:
            place = (first + np.arange(size)[:, None]) * bits + np.arange(bits)
            parts.append(place.T.ravel())
            first += size
        return np.concatenate(parts)


class Decoder:
    """Gives the levels of pixels, which must be asked for as they were added.

    Raises UserError for a stream too short to begin with.
    """

    def __init__(self, stream: bytes, layout: Layout):
        self.layout, self._done = layout, 0
        size = (layout.classes * layout.bits + 1) // 2
        if len(stream) < _HEAD.size + size or (len(stream) - _HEAD.size - size) % 4:
            raise UserError("The compressed file is damaged: a part of it is too short.")
        self._bits, self._group = _HEAD.unpack_from(stream)
        if not 1 <= self._bits <= MOST_CHOICE_BITS or not self._group:
            raise UserError("The compressed file is damaged: a part of it has no valid beginning.")
        table = _unpacked(stream[_HEAD.size : _HEAD.size + size])
        self._table = table[: layout.classes * layout.bits].reshape(layout.classes, layout.bits)
        words = np.frombuffer(stream, "<u4", offset=_HEAD.size + size).astype(np.uint32)
        try:
            self._coder = _constriction().stream.stack.AnsCoder(words)
        except ValueError as error:
            raise UserError("The compressed file is damaged: a part of it ends wrongly.") from error
        groups = -(-layout.pixels // self._group)
        self._choices = self._coder.decode(_choice_model(self._bits), groups).astype(np.int64)

    def levels(self, distribution: Distribution, pixels: int, class_: int, channel: int):
        """Returns the levels, int64 [pixels], of a channel of the next pixels."""
        layout, model = self.layout, _bit_model()
        at, low = self._done + np.arange(pixels), np.zeros(pixels, np.int64)
        choices, place = self._choices[at // self._group], at % self._group * layout.bits
        for i in range(layout.depth):
            half, bit = 1 << (layout.depth - 1 - i), channel * layout.depth + i
            t = distribution.split(low, half, 1 << layout.depth).t
            steps = np.full(pixels, self._table[class_, bit])
            ones = rounded(t, steps, choices, place + bit, self._bits)
            low = low + half * self._coder.decode(model, ones).astype(np.int64)
        if channel == layout.channels - 1:
            self._done += pixels
        return low


def _packed(table: np.ndarray) -> bytes:
    """Numbers below 16, two a byte."""
    flat = np.append(table.ravel(), [0] * (table.size % 2)).astype(np.uint8)
    return (flat[::2] << 4 | flat[1::2]).tobytes()


def _unpacked(packed: bytes) -> np.ndarray:
    both = np.frombuffer(packed, np.uint8)
    return np.stack([both >> 4, both & 15], 1).ravel().astype(np.int64)


def _constriction() -> Any:
    try:
        import constriction
    except ImportError as error:
        raise UserError(
            'Compression needs the package constriction: pip install "onepass[compress]".'
        ) from error
    return constriction


def _bit_model() -> Any:
    return _constriction().stream.model.Bernoulli(perfect=False)


def _choice_model(bits: int) -> Any:
    return _constriction().stream.model.Uniform(1 << bits)
