"""Lossless compression of recordings with the conditional distributions of a WaveNet.

Recordings are cut into segments of about `SEGMENT` samples, and up to `MOST_ROWS` of them are the
rows of one stream: all advance by a sample in one step of the network, in the decoder too, and
`AT_ONCE` streams advance in threads. A segment knows nothing of the one before it, so it is cut off
where the sound is quietest, and begins after `BEFORE` samples of a noise that is as loud as its
first samples are.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from onepass.compression import container
from onepass.compression.arrays import Rows, SymbolConditionals, digest_of_network
from onepass.compression.conditionals import check_table
from onepass.compression.container import Container, Kind
from onepass.compression.odds import narrowest_of
from onepass.foundation.rules import UserError
from onepass.networks.conditions import only_timed
from wavenet.network import Network
from wavenet.samplers.symbols import autoregressive

SIXTEEN_BIT = 1 << 16  # levels
SEGMENT = 8192  # samples in a segment, about
MOST_ROWS = 32  # segments in a stream
AT_ONCE = 2  # streams that are decoded at the same time
QUIET = 256  # samples that are quietest around a cut
SHIFT = 2000  # samples by which a cut may be away from its even place
LOUDNESS = 128  # first samples of a segment, whose root mean square is that of the noise before it
BEFORE = 256
PASS_SAMPLES = 1 << 16  # in a pass of the encoder
UNIT = 10  # bits by which the noise is shifted


class Segment(NamedTuple):
    """A part of a recording: its number among all, its length, and the noise before it."""

    number: int
    length: int
    octaves: int  # log2 of the noise's root mean square, plus 1, in levels; 0: silence


class Recordings(Kind):
    """The format of compressed files of recordings and their speaker."""

    name, version, at_once = "sound", 3, AT_ONCE

    def __init__(self, network: Network, front: Any):
        config, likelihood = network.config, network.likelihood
        if config.conditioner_units or config.feature_channels or config.context_layers:
            raise UserError(
                "Only a WaveNet without frames and context stack compresses: frames are made of "
                "the sound itself, and would have to be in the file."
            )
        self._front, self._network = front, network
        self.conditionals = SymbolConditionals(autoregressive(network), PASS_SAMPLES)
        if self._odds == "table":
            check_table(likelihood)

    @property
    def _odds(self) -> str:
        return self.conditionals.ways[0]

    def digests(self) -> tuple[bytes, bytes | None]:
        """See `Kind.digests`."""
        return digest_of_network(self._network), None

    def pack(self, elements: Any, condition: Any, tolerance: float, **options: Any) -> Any:
        """Return shape, description and levels to store; `condition` is the speaker's name."""
        recordings = [self._levels(np.asarray(recording)) for recording in elements]
        speaker, lengths = self._front.speaker_number(condition), [len(x) for x in recordings]
        if not recordings or not all(lengths):
            raise UserError("There must be a recording, and a sample in each.")
        middle = self.conditionals.levels // 2
        parts = [part for x in recordings for part in np.split(x, find_cuts(x - middle))]
        segments = [[len(part), measure_octaves(part - middle)] for part in parts]
        described: dict[str, Any] = {"lengths": lengths, "narrowest": narrowest_of(tolerance)}
        described |= {"segments": segments}
        described |= {} if speaker is None else {"speaker": speaker}
        described |= {} if self._odds == self.way else {"odds": self._odds}
        blocks = (_together([parts[each.number] for each in x]) for x in _streams(segments))
        return (len(recordings), sum(lengths), 1, 1), described, blocks

    def check(self, found: Container) -> None:
        """Raise a UserError unless all fields of a file are in range."""
        count, samples, *rest = found.shape
        description = found.description
        if found.version < self.version:
            raise UserError(
                f"The compressed file has format version {found.version}; this program reads sound"
                f" of version {self.version}."
            )
        if rest != [1, 1] or not count:
            container.raise_damaged("shape", "recordings, samples, 1, 1")
        lengths = container.check_list("lengths", description.get("lengths"), (count,))
        if sum(container.whole("lengths", length, 1, samples) for length in lengths) != samples:
            container.raise_damaged("lengths", f"{samples} in all")
        segments, most = description.get("segments"), (self.conditionals.levels - 1).bit_length()
        if not isinstance(segments, list) or not segments:
            container.raise_damaged("segments", "a list of one or more")
        for segment in segments:
            length, octaves = container.check_list("segments", segment, (2,))
            container.whole("segments", length, 1, 2 * SEGMENT)
            container.whole("segments", octaves, 0, most)
        ends = np.cumsum([length for length, _ in segments], dtype=np.int64)
        if not np.isin(np.cumsum(lengths), ends).all() or ends[-1] != samples:
            container.raise_damaged("segments", "parts of the recordings")
        if len(found.streams) != _count_streams(len(segments)):
            container.raise_damaged("streams", f"one for up to {MOST_ROWS} segments")
        speaker, speakers = description.get("speaker"), self._network.config.speakers
        if speakers:
            container.whole("speaker", speaker, 0, speakers - 1)
        elif speaker is not None:
            container.raise_damaged("speaker", "absent")

    def blocks(self, found: Container, condition: Any) -> Iterator[tuple[tuple[int, ...], Any]]:
        """Yield the shape (segments, samples) and the `Rows` of each stream in a file."""
        speaker = found.description.get("speaker")
        for segments in _streams(found.description["segments"]):
            count, longest, spoken = len(segments), segments[0].length, None
            if speaker is not None:
                numbers = tf.fill([count], speaker)
                spoken = self._network.condition(None, numbers, BEFORE + longest)
            before = [self._noise(segment.octaves) for segment in segments]
            lengths = [segment.length for segment in segments]
            yield (count, longest), Rows(only_timed(spoken), lengths, np.stack(before))

    def unpack(self, found: Container, parts: list[np.ndarray]) -> list[np.ndarray]:
        """Return recordings [samples]: int16 for 65,536 levels, uint8 or uint16 for fewer."""
        levels, segments = self.conditionals.levels, found.description["segments"]
        placed: list[Any] = [None] * len(segments)
        for block, part in zip(_streams(segments), parts, strict=True):
            for segment, row in zip(block, part, strict=True):
                placed[segment.number] = row[: segment.length]
        whole = np.concatenate(placed)
        if levels == SIXTEEN_BIT:
            whole = (whole.astype(np.int32) - SIXTEEN_BIT // 2).astype(np.int16)
        else:
            whole = whole.astype(np.uint8 if levels <= 256 else np.uint16)
        return np.split(whole, np.cumsum(found.description["lengths"])[:-1])

    def _noise(self, octaves: int) -> np.ndarray:
        """Return the levels before a segment, int32 [BEFORE]."""
        levels = self.conditionals.levels
        wave = NOISE << octaves >> UNIT + 1 if octaves else np.zeros_like(NOISE)
        return np.clip(levels // 2 + wave, 0, levels - 1).astype(np.int32)

    def _levels(self, recording: np.ndarray) -> np.ndarray:
        levels = self.conditionals.levels
        top = int(recording.max(initial=0)) if recording.dtype.kind == "u" else -1
        whole = recording.dtype == np.int16 and levels == SIXTEEN_BIT
        if recording.ndim != 1 or not (whole or 0 <= top < levels):
            raise UserError(
                f"A recording must be int16 [samples] for {SIXTEEN_BIT} levels, or unsigned "
                f"levels below {levels}, got {recording.dtype} {list(recording.shape)}."
            )
        return recording.astype(np.int32) + (SIXTEEN_BIT // 2 if whole else 0)


def find_cuts(wave: np.ndarray) -> np.ndarray:
    """Return where a recording [samples] is cut: the quietest place near each even one."""
    count = max(1, round(len(wave) / SEGMENT))
    energy = np.cumsum(np.pad(np.square(wave.astype(np.int64)), (1, 0)))
    cuts = []
    for number in range(1, count):
        low = len(wave) * number // count - SHIFT
        starts = np.arange(low, low + 2 * SHIFT) - QUIET // 2
        cuts.append(low + int(np.argmin(energy[starts + QUIET] - energy[starts])))
    return np.array(cuts, np.int64)


def measure_octaves(wave: np.ndarray) -> int:
    """Return how loud a segment's first samples are, as in `Segment`."""
    square = int(np.square(wave[:LOUDNESS].astype(np.int64)).sum()) // len(wave[:LOUDNESS])
    return (square.bit_length() + 1) // 2


def _make_noise() -> np.ndarray:
    """Return a noise of whole numbers with more low than high tones, of root mean square 2^UNIT."""
    word, before, made = 1, 0, []
    for _ in range(BEFORE):
        word = word * 1664525 + 1013904223 & 0xFFFFFFFF
        before = (before * 7 >> 3) + ((word >> 16) - (1 << 15) >> 5)
        made.append(before)
    return np.array(made, np.int64)


NOISE = _make_noise()


def _streams(segments: list[list[int]]) -> Iterator[list[Segment]]:
    """Yield the segments of each stream, those of similar length together, the longest first."""
    made = [Segment(number, length, octaves) for number, (length, octaves) in enumerate(segments)]
    made.sort(key=lambda segment: -segment.length)
    count = _count_streams(len(made))
    for number in range(count):
        yield made[len(made) * number // count : len(made) * (number + 1) // count]


def _count_streams(segments: int) -> int:
    """Return the number of streams, a multiple of AT_ONCE if there are as many segments."""
    return min(segments, AT_ONCE * -(-segments // (AT_ONCE * MOST_ROWS)))


def _together(parts: list[np.ndarray]) -> np.ndarray:
    """Return rows of levels [rows, samples], padded to the first one's length."""
    return np.stack([np.pad(part, (0, len(parts[0]) - len(part))) for part in parts])
