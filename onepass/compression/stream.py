"""Entropy-coded streams of levels, with distributions nearly equal in encoder and decoder.

Each bit's odds t (`odds`) are rounded to a grid with a given step. If t is within its margin of the
border between two values, a different processor may round it to the other value, and everything
decoded afterwards would be noise. Elements are therefore coded in groups, each with one of many
choices of how its grids are shifted: of those for which no odds of the group are within their
margin of a border, the encoder takes and stores the one with the shortest code. A few choices have
steps four times as large; the last gives every bit the probability 1/2, which needs no agreement.

`constriction` codes the rounded odds by asymmetric numeral systems (Bamler 2022, arXiv 2201.01741).
A stream is

    choice bits, uint8 | pixels in a group, uint16 | a step for each class and bit, 4 bits each |
    words, uint32: the choice of every group, then the bits of all pixels

where a pixel is one element, or all channels at one position. The pixels of one call are coded
together: channel by channel, and within a channel the highest bits of all pixels first.
"""

import dataclasses
import functools
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numba
import numpy as np

from onepass.compression.odds import REACH, Split
from onepass.foundation.rules import UserError
from onepass.machine.compiler import compiled, entry

PRECISION = 24  # bits of an integer probability
# Steps of t, in units of 1/1024. Coarse steps cost bits; with fine steps few shifts fit a group.
STEPS = np.array([
    64, 96, 128, 160, 204, 256, 324, 408, 512, 648, 816, 1024, 1290, 1625, 2048, 3072
])  # fmt: skip
COARSER = 6  # offset in STEPS to a step that is about four times as large
# Penalty in bits for odds too close to a border when a step is chosen: more than the log2(e) that
# choices take for each, because good choices compensate for coarse steps.
NEAR_BITS = 6.0
MOST_CHOICE_BITS = 12
SHIFTS = 64  # number of offsets of a grid, as fractions of its step
_BINS = 2 * math.ceil(REACH * 1024 / STEPS[0]) + 3
_SMALLEST = 2.0**-7  # least value of 1 - |t| / REACH: no bit is rarer than 2^-21


class Grids:
    """Probabilities of the bit 1 and code lengths in bits for each step, shift and bin of odds."""

    def __init__(self) -> None:
        step = STEPS[:, None, None] / 1024.0
        shift = (np.arange(SHIFTS) / SHIFTS)[None, :, None]
        centre = np.arange(_BINS) - _BINS // 2 + shift
        # Only products, sums and a quotient, which have the same bits on every processor.
        low = np.maximum((centre - 0.5) * step, -REACH)
        high = np.minimum((centre + 0.5) * step, REACH)
        middle = np.clip(0.5 * (low + high), -REACH, REACH)
        small = np.maximum(1.0 - np.abs(middle) / REACH, _SMALLEST)
        odds = small * small * small
        rare = np.rint(odds / (1.0 + odds) * 2.0**PRECISION)
        ones = np.where(middle < 0.0, rare, 2.0**PRECISION - rare)
        self.probabilities = ones / 2.0**PRECISION
        costs = np.stack([1.0 - self.probabilities, self.probabilities], -1)
        self.costs = -np.log2(costs).astype(np.float32)


@functools.cache
def grids() -> Grids:
    """Return the grids, which are the same for all files."""
    return Grids()


@compiled
def _shift(choice: int, index: int) -> np.int64:
    """Return the grid's shift for the bit at `index` in its group, in 64ths of a step."""
    word = np.uint32(choice + 1) * np.uint32(2654435761) ^ np.uint32(index + 1) * np.uint32(40503)
    word = (word ^ word >> np.uint32(15)) * np.uint32(2246822519)
    return np.int64((word ^ word >> np.uint32(13)) & np.uint32(SHIFTS - 1))


@compiled
def _bin(t: float, step: float, shift: float) -> tuple[int, float]:
    """Return t's bin, and the distance to its nearest border in (-REACH, REACH), or infinity."""
    position = t / step - shift
    bin_ = math.floor(position + 0.5)
    distance = math.inf
    for border in (bin_ - 0.5, bin_ + 0.5):
        at = (border + shift) * step
        if -REACH < at < REACH:
            distance = min(distance, abs(t - at))
    return int(bin_), distance


@entry
def _trial(
    t: np.ndarray, margin: np.ndarray, bit: np.ndarray, step: float, which: int, costs: np.ndarray
) -> tuple[float, float]:
    """Return the code length in bits and the number of odds near a border, mean of 4 choices."""
    bits, near = 0.0, 0.0
    for i in range(len(t)):
        for choice in range(4):
            shift = _shift(choice, i)
            bin_, distance = _bin(t[i], step, shift / SHIFTS)
            bits += costs[which, shift, bin_ + costs.shape[2] // 2, bit[i]]
            near += distance <= margin[i]
    return bits / 4, near / 4


@compiled
def _shifts_near_border(t: float, margin: float, step: float) -> np.uint64:
    """Return the shifts at which t is too close to a border, as a bit mask."""
    word = np.uint64(0)
    for shift in range(SHIFTS):
        if _bin(t, step, shift / SHIFTS)[1] <= margin:
            word |= np.uint64(1) << np.uint64(shift)
    return word


@compiled
def _near_any(t: float, margin: float, step: float) -> bool:
    """Return whether t is close to a border at any shift: a multiple of a 64th of the step."""
    position = t / step * SHIFTS
    return abs(position - math.floor(position + 0.5)) * step <= (margin * SHIFTS)


@compiled
def _fits(choice: int, indices: np.ndarray, refused: np.ndarray, count: int) -> bool:
    """Return whether no odds at `indices` in a group refuse the shift that a choice gives them."""
    for r in range(count):
        if refused[r] >> np.uint64(_shift(choice, indices[r])) & np.uint64(1):
            return False
    return True


@functools.partial(entry, parallel=True)
def _search(
    t: np.ndarray,
    margin: np.ndarray,
    bit: np.ndarray,
    steps: np.ndarray,
    group: int,
    counts: tuple[int, int, int],
    costs: np.ndarray,
    chosen: np.ndarray,
    totals: np.ndarray,
) -> None:
    """Write the best choice of each group to `chosen`, and its code length in bits to `totals`."""
    sizes, middle = _step_sizes(), costs.shape[2] // 2
    for g in numba.prange(len(chosen)):
        first, count = g * group, min(group, len(t) - g * group)
        best, found = float(count), counts[2] - 1
        indices, refused = np.empty(count, np.int64), np.empty(count, np.uint64)
        position, which = np.empty(count), np.empty(count, np.int64)
        for coarse in range(2):
            risky = 0
            for j in range(count):
                odds, off = t[first + j], margin[first + j]
                which[j] = min(steps[first + j] + COARSER * coarse, len(sizes) - 1)
                step = sizes[which[j]]
                position[j] = odds / step + 0.5
                if _near_any(odds, off, step):
                    indices[risky], refused[risky] = j, _shifts_near_border(odds, off, step)
                    risky += 1
            start, end = (counts[0], counts[0] + counts[1]) if coarse else (0, counts[0])
            for choice in range(start, end):
                if not _fits(choice, indices, refused, risky):
                    continue
                bits = 0.0
                for j in range(count):
                    shift = _shift(choice, j)
                    bin_ = math.floor(position[j] - shift / SHIFTS) + middle
                    bits += costs[which[j], shift, bin_, bit[first + j]]
                if bits < best:
                    best, found = bits, choice
            if found < counts[2] - 1:
                break
        chosen[g], totals[g] = found, best


@numba.njit(inline="always")
def _step_sizes() -> np.ndarray:
    return STEPS / 1024.0


@entry
def _round_each(
    t: np.ndarray,
    steps: np.ndarray,
    choices: np.ndarray,
    indices: np.ndarray,
    counts: tuple[int, int, int],
    probabilities: np.ndarray,
    ones: np.ndarray,
) -> None:
    sizes = _step_sizes()
    for i in range(len(t)):
        choice = choices[i]
        if choice == counts[2] - 1:
            ones[i] = 0.5
            continue
        which = min(steps[i] + (COARSER if choice >= counts[0] else 0), len(sizes) - 1)
        shift = _shift(choice, indices[i])
        bin_, _ = _bin(t[i], sizes[which], shift / SHIFTS)
        ones[i] = probabilities[which, shift, bin_ + probabilities.shape[2] // 2]


def counts_of(choice_bits: int) -> tuple[int, int, int]:
    """Return the numbers of choices with the original steps, with coarser steps, and in total."""
    whole = 1 << choice_bits
    coarse = whole // 8
    return whole - coarse - 1, coarse, whole


def round_probabilities(
    t: np.ndarray, steps: np.ndarray, choices: np.ndarray, indices: np.ndarray, choice_bits: int
) -> np.ndarray:
    """Return the rounded probability that each bit is 1, a multiple of 2^-24, [bits]."""
    ones = np.empty(len(t))
    counts = counts_of(choice_bits)
    _round_each(t, steps, choices, indices, counts, grids().probabilities, ones)
    return ones


class Odds(NamedTuple):
    """Odds of the bits of pixels: float64 t and margin, and uint8 bit, each [pixels, bits]."""

    t: np.ndarray
    margin: np.ndarray
    bit: np.ndarray


def _join_odds(parts: Sequence[Odds], axis: int) -> Odds:
    t, margin, bit = (np.concatenate(arrays, axis) for arrays in zip(*parts, strict=True))
    return Odds(t, margin, bit)


def best_step(t: np.ndarray, margin: np.ndarray, bit: np.ndarray) -> int:
    """Return the index in STEPS of least code length plus NEAR_BITS for each odds near a border."""
    if not len(t):
        return 0
    found = []
    for which, step in enumerate(STEPS / 1024.0):
        bits, near = _trial(t, margin, bit, step, which, grids().costs)
        found.append(bits + NEAR_BITS * near)
    return int(np.argmin(found))


def choose(odds: Odds, steps: np.ndarray, group: int, bits: int) -> tuple[np.ndarray, float]:
    """Return the best choice for every group, int64 [groups], and the total code length in bits.

    Odds and steps are [elements, depth]; a group has `group` elements, and a choice is stored in
    `bits` bits.
    """
    chosen = np.zeros(-(-len(odds.t) // group), np.int64)
    totals, bits_each = np.zeros(len(chosen)), group * odds.t.shape[1]
    t, margin, bit, steps = (each.ravel() for each in (odds.t, odds.margin, odds.bit, steps))
    _search(t, margin, bit, steps, bits_each, counts_of(bits), grids().costs, chosen, totals)
    return chosen, totals.sum() + bits * len(chosen)


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
        self._odds.append(_join_odds(channels, 1))
        self._classes.append(np.full(len(channels[0].t), class_))
        self._calls += calls

    def finish(self) -> bytes:
        """Return the stream of all added pixels."""
        odds = _join_odds(self._odds, 0)
        if not (np.isfinite(odds.t).all() and np.isfinite(odds.margin).all()):
            raise UserError("`model` must have finite outputs to compress, got NaN or infinity.")
        classes, bits = np.concatenate(self._classes), self.layout.bits
        table = self._steps(odds, classes)
        steps = table[classes]
        group, choice_bits = self._groups(odds, steps)
        choices, total = choose(odds, steps, group, choice_bits)
        if total > odds.t.size + len(odds.t) / _LARGEST_GROUP + 1:
            # The odds are too uncertain to be useful: all bits get the probability 1/2.
            group, choice_bits = _LARGEST_GROUP, 1
            choices = np.full(-(-len(odds.t) // group), counts_of(1)[2] - 1, np.int64)
        index = np.arange(odds.t.size)
        each = choices[index // (group * bits)]
        order, place = self._coding_order(), index % (group * bits)
        ones = round_probabilities(odds.t.ravel(), steps.ravel(), each, place, choice_bits)
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
        table = np.zeros([self.layout.classes, self.layout.bits], np.int64)
        for class_ in range(self.layout.classes):
            rows = np.flatnonzero(classes == class_)
            rows = rows[:: 1 + len(rows) // _TRIED]
            for i in range(self.layout.bits):
                t, margin, bit = (array[rows, i] for array in odds)
                table[class_, i] = best_step(t, margin, bit)
        return table

    def _groups(self, odds: Odds, steps: np.ndarray) -> tuple[int, int]:
        near = np.minimum(1.0, 2.0 * odds.margin / (STEPS[steps] / 1024.0)).sum()
        groups = max(1, round(near / _NEAR_IN_GROUP))
        group = min(-(-len(odds.t) // groups), _LARGEST_GROUP)
        expected = near * group / len(odds.t)
        bits = math.ceil(expected * math.log2(math.e)) + _SPARE_CHOICE_BITS
        return group, min(bits, MOST_CHOICE_BITS)

    def _coding_order(self) -> np.ndarray:
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
