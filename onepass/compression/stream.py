"""Entropy-coded streams of levels, with distributions nearly equal in encoder and decoder.

The odds are rounded (`rounding`) to integers on which encoder and decoder agree; with these,
`constriction` codes by asymmetric numeral systems (Bamler 2022, "Understanding Entropy Coding With
Asymmetric Numeral Systems", arXiv 2201.01741). A stream is

    choice bits, uint8 | pixels in a group, uint16 | a step for each class and bit, 4 bits each |
    words, uint32: the choice of every group, then the bits of all pixels

where a pixel is one element, or all channels at one position, which are coded one after another.
The pixels of one call are coded together: channel by channel, and within a channel the highest bits
of all pixels first.
"""

import dataclasses
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from onepass.compression.rounding import (
    MOST_CHOICE_BITS,
    STEPS,
    best_step,
    choose,
    counts_of,
    round_probabilities,
)
from onepass.compression.splits import Split
from onepass.foundation.errors import UserError

_HEAD = struct.Struct("<BH")
_TRIED = 1 << 14  # largest number of odds, per class and bit, from which a step is chosen
# Mean number n of odds per group that are too close to a border. A larger n makes choices cheaper
# but slower to find, as one in e^n fits.
_NEAR_IN_GROUP = 3.2
_SPARE_CHOICE_BITS = 7  # leaves several choices that fit, one of them with a short code
_LARGEST_GROUP = 2**16 - 1
# Every choice takes its full number of bits, except for up to this much in the coder's state.
_SLACK_BYTES = 64
# A coder with no more words than this has only its state left, from which pixels that are almost
# certain could be decoded for ever. No stream has more than `DRY_CALLS` calls left by then: an
# encoder begins with further words where it otherwise would.
_DRY_WORDS = 2
DRY_CALLS = 1 << 14


class Distribution(Protocol):
    """Distributions of elements: a `Mixture`, a `Categorical` or another class with `split`."""

    def split(self, low: np.ndarray, half: int, whole: int) -> Split:
        """Return the odds of the bits that split [low, low + 2 half), as in `Mixture.split`."""


# A function from the levels of the previous channel (None for the first) to the next distribution.
Channels = Callable[[np.ndarray | None], Distribution]


# A function that is called with a number of elements that have been encoded or decoded.
Advance = Callable[[int], object]


def silent(elements: int) -> None:
    """Say nothing about progress."""


def alone(distribution: Distribution) -> Channels:
    """Return the `Channels` of pixels that have one channel."""
    return lambda before: distribution


class Odds(NamedTuple):
    """Odds of the bits of pixels: float64 t and margin, and uint8 bit, each [pixels, bits]."""

    t: np.ndarray
    margin: np.ndarray
    bit: np.ndarray


@dataclasses.dataclass(frozen=True)
class Layout:
    """Sizes of a stream that encoder and decoder know in advance."""

    depth: int
    channels: int
    classes: int  # number of classes of pixels, each with its own steps
    pixels: int
    levels: int = 0  # number of levels of an element; 0: all 2^depth

    @property
    def bits(self) -> int:
        """Number of bits per pixel."""
        return self.depth * self.channels


def depth_of(levels: int) -> int:
    """Return the number of bits that store a level, at least 1."""
    return max(1, (levels - 1).bit_length())


def odds_of(distribution: Distribution, levels: np.ndarray, depth: int) -> Odds:
    """Return the odds of the `depth` bits of known levels [pixels] of one channel."""
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
    """Encoder that takes the odds of pixels in the order in which the decoder requests them."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._odds: list[Odds] = []
        self._classes: list[np.ndarray] = []
        self._calls: list[int] = []

    def add(self, channels: list[Odds], class_: int, calls: Sequence[int]) -> None:
        """Append pixels of one class, which the decoder will request in calls of these sizes."""
        self._odds.append(
            Odds(*(np.concatenate(arrays, 1) for arrays in zip(*channels, strict=True)))
        )
        self._classes.append(np.full(len(channels[0].t), class_))
        self._calls += calls

    def finish(self) -> bytes:
        """Return the stream of all added pixels."""
        odds = Odds(*(np.concatenate(arrays) for arrays in zip(*self._odds, strict=True)))
        if not (np.isfinite(odds.t).all() and np.isfinite(odds.margin).all()):
            raise UserError("`model` must have finite outputs to compress, got NaN or infinity.")
        classes, bits = np.concatenate(self._classes), self.layout.bits
        table = self._steps(odds, classes)
        steps = table[classes]
        group, choice_bits = self._groups(odds, steps)
        choices, total = choose(*odds, steps, group, choice_bits)
        if total > odds.t.size + len(odds.t) / _LARGEST_GROUP + 1:
            # The odds are too uncertain to be useful: all bits get the probability 1/2.
            group, choice_bits = _LARGEST_GROUP, 1
            choices = np.full(-(-len(odds.t) // group), counts_of(1)[2] - 1, np.int64)
        index = np.arange(odds.t.size)
        each = choices[index // (group * bits)]
        order, ones = (
            self._coding_order(),
            round_probabilities(
                odds.t.ravel(), steps.ravel(), each, index % (group * bits), choice_bits
            ),
        )
        coder = self._encode_bits(odds.bit.ravel()[order].astype(np.int32), ones[order])
        coder.encode_reverse(choices.astype(np.int32), _choice_model(choice_bits))
        words = coder.get_compressed().astype("<u4").tobytes()
        return _HEAD.pack(choice_bits, group) + _pack_nibbles(table) + words

    def _encode_bits(self, bits: np.ndarray, ones: np.ndarray) -> Any:
        # The coder is a stack, read in reverse order. A range coder would lose 1e-4 bits per
        # symbol.
        stack, model = _constriction().stream.stack, _bit_model()
        tail = sum(self._calls[:-DRY_CALLS]) * self.layout.bits
        coder = stack.AnsCoder()
        coder.encode_reverse(bits[tail:], model, ones[tail:])
        if tail and coder.num_words() <= _DRY_WORDS:
            coder = stack.AnsCoder(np.ones(_DRY_WORDS + 1, np.uint32))
            coder.encode_reverse(bits[tail:], model, ones[tail:])
        coder.encode_reverse(bits[:tail], model, ones[:tail])
        return coder

    def _steps(self, odds: Odds, classes: np.ndarray) -> np.ndarray:
        """Choose the step of each class and bit; return indices in STEPS, int64 [classes, bits]."""
        table = np.zeros([self.layout.classes, self.layout.bits], np.int64)
        for class_ in range(self.layout.classes):
            rows = np.flatnonzero(classes == class_)
            rows = rows[:: 1 + len(rows) // _TRIED]
            for i in range(self.layout.bits):
                table[class_, i] = best_step(*(array[rows, i] for array in odds))
        return table

    def _groups(self, odds: Odds, steps: np.ndarray) -> tuple[int, int]:
        """Return the pixels per group and the bits per choice that let some choices fit a group."""
        near = np.minimum(1.0, 2.0 * odds.margin / (STEPS[steps] / 1024.0)).sum()
        groups = max(1, round(near / _NEAR_IN_GROUP))
        group = min(-(-len(odds.t) // groups), _LARGEST_GROUP)
        expected = near * group / len(odds.t)
        bits = math.ceil(expected * math.log2(math.e)) + _SPARE_CHOICE_BITS
        return group, min(bits, MOST_CHOICE_BITS)

    def _coding_order(self) -> np.ndarray:
        """Return the flat index in [pixels, bits] of each bit, in the order of coding."""
        parts, first, bits = [], 0, self.layout.bits
        for size in self._calls:
            index = (first + np.arange(size)[:, None]) * bits + np.arange(bits)
            parts.append(index.T.ravel())
            first += size
        return np.concatenate(parts)


class Decoder:
    """Decoder of the levels of pixels, which must be requested in the order of encoding."""

    def __init__(self, stream: bytes, layout: Layout, advance: Advance = silent) -> None:
        self.layout, self._done, self._dry, self._advance = layout, 0, 0, advance
        size = (layout.classes * layout.bits + 1) // 2
        if len(stream) < _HEAD.size + size or (len(stream) - _HEAD.size - size) % 4:
            raise UserError("The compressed file is damaged: a stream is too short.")
        self._bits, self._group = _HEAD.unpack_from(stream)
        if not 1 <= self._bits <= MOST_CHOICE_BITS or not self._group:
            raise UserError("The compressed file is damaged: a stream has an invalid header.")
        table = _unpack_nibbles(stream[_HEAD.size : _HEAD.size + size])
        self._table = table[: layout.classes * layout.bits].reshape(layout.classes, layout.bits)
        words = np.frombuffer(stream, "<u4", offset=_HEAD.size + size).astype(np.uint32)
        try:
            self._coder = _constriction().stream.stack.AnsCoder(words)
        except ValueError as error:
            raise UserError(
                "The compressed file is damaged: a stream has an invalid end."
            ) from error
        groups = -(-layout.pixels // self._group)
        if groups * self._bits > 8 * (len(stream) + _SLACK_BYTES):
            raise UserError("The compressed file is damaged: a stream is too short.")
        self._choices = self._coder.decode(_choice_model(self._bits), groups).astype(np.int64)

    def pixels(self, channels: Channels, pixels: int, class_: int = 0) -> np.ndarray:
        """Return the levels of the next pixels, int64 [pixels, channels]."""
        found: list[np.ndarray] = []
        for channel in range(self.layout.channels):
            distribution = channels(found[-1] if found else None)
            found.append(self.levels(distribution, pixels, class_, channel))
        return np.stack(found, -1)

    def levels(
        self, distribution: Distribution, pixels: int, class_: int, channel: int
    ) -> np.ndarray:
        """Return the levels of one channel of the next pixels, int64 [pixels]."""
        layout, model = self.layout, _bit_model()
        at, low = self._done + np.arange(pixels), np.zeros(pixels, np.int64)
        choices, index = self._choices[at // self._group], at % self._group * layout.bits
        for i in range(layout.depth):
            half, bit = 1 << (layout.depth - 1 - i), channel * layout.depth + i
            t = distribution.split(low, half, 1 << layout.depth).t
            if not np.isfinite(t).all():
                raise UserError("`model` must have finite outputs to decode by, got NaN.")
            steps = np.full(pixels, self._table[class_, bit])
            ones = round_probabilities(t, steps, choices, index + bit, self._bits)
            low = low + half * self._coder.decode(model, ones).astype(np.int64)
        if channel == layout.channels - 1:
            self._finish_call(pixels)
        if layout.levels and low.max(initial=0) >= layout.levels:
            raise UserError("The compressed file is damaged: it holds a level out of range.")
        return low

    def _finish_call(self, pixels: int) -> None:
        self._done += pixels
        self._dry += self._coder.num_words() <= _DRY_WORDS
        if self._dry > DRY_CALLS:
            raise UserError(
                f"The compressed file is damaged: a stream of {self.layout.pixels:,} pixels or "
                f"samples ends before number {self._done:,}."
            )
        self._advance(pixels * self.layout.channels)


def _pack_nibbles(table: np.ndarray) -> bytes:
    flat = np.append(table.ravel(), [0] * (table.size % 2)).astype(np.uint8)
    return (flat[::2] << 4 | flat[1::2]).tobytes()


def _unpack_nibbles(packed: bytes) -> np.ndarray:
    both = np.frombuffer(packed, np.uint8)
    return np.stack([both >> 4, both & 15], 1).ravel().astype(np.int64)


def _constriction() -> Any:
    try:
        import constriction
    except ImportError as error:
        raise UserError(
            'Compression requires the package constriction: pip install "onepass[compress]".'
        ) from error
    return constriction


def _bit_model() -> Any:
    return _constriction().stream.model.Bernoulli(perfect=False)


def _choice_model(bits: int) -> Any:
    return _constriction().stream.model.Uniform(1 << bits)
