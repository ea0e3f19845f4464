"""Detection of all audio streams in an audio file, independently of the lengths in its headers.

A decoder stops where a header says that the audio ends: after the number of frames in an Xing, Info
or VBRI header, or after a number estimated from the first frame. Files that were concatenated, or
whose headers are estimated or wrong, contain more audio than that. A chained Ogg file contains
consecutive streams, each with separate pages. In a WAV or AIFF file, bytes after the audio that do
not form a chunk are not accounted for by the header.
"""

import bisect
import dataclasses
import io
import string
from typing import Any, BinaryIO, Literal, NamedTuple

SEARCHED_AT_ONCE = 1 << 18


class Source:
    """A binary file with random access and a `size` in bytes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = file.seek(0, io.SEEK_END)

    def at(self, place: int, count: int) -> bytes:
        """Return `count` bytes at a position, or fewer at the end of the file."""
        self._file.seek(place)
        return self._file.read(count)

    def find(self, pattern: bytes, start: int) -> int:
        """Return the first position of a pattern at or after `start`, or -1."""
        while start < self.size:
            data = self.at(start, SEARCHED_AT_ONCE + len(pattern) - 1)
            found = data.find(pattern)
            if found >= 0:
                return start + found
            start += SEARCHED_AT_ONCE
        return -1


class Pieces(io.RawIOBase):
    """A readable file that is composed of pieces: bytes, and byte ranges of a source."""

    def __init__(self, source: Source, pieces: list[bytes | range]) -> None:
        super().__init__()
        self._source, self._pieces = source, pieces
        self._starts = [0]
        for piece in pieces:
            self._starts.append(self._starts[-1] + len(piece))
        self._place = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position relative to the start, the current position or the end; return it."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._starts[-1]}[whence]
        self._place = max(0, base + offset)
        return self._place

    def tell(self) -> int:
        """Return the current position."""
        return self._place

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, only partly at the end of the file, and return the number of bytes."""
        view, filled = memoryview(buffer).cast("B"), 0
        while filled < len(view) and self._place < self._starts[-1]:
            data = self._here(len(view) - filled)
            if not data:
                break  # the source has become shorter
            view[filled : filled + len(data)] = data
            filled += len(data)
            self._place += len(data)
        return filled

    def _here(self, count: int) -> bytes:
        number = bisect.bisect_right(self._starts, self._place) - 1
        piece, inside = self._pieces[number], self._place - self._starts[number]
        count = min(count, len(piece) - inside)
        if isinstance(piece, bytes):
            return piece[inside : inside + count]
        return self._source.at(piece.start + inside, count)


OGG = b"OggS"
OGG_HEAD_BYTES = 27
FIRST_PAGE = 2  # flag of a stream's first page
LITTLE, BIG = (b"RIFF", b"RF64"), (b"FORM", b"RIFX")
PRINTABLE = frozenset(string.printable.encode())
OFFSET_BYTES = {b"data": 0, b"SSND": 8}  # fields of an audio chunk before its audio
PADDING_BYTES = 1024  # maximum size of meaningless padding that programs append


class AudioChunk(NamedTuple):
    """The audio chunk of a file, all zeros if there is none.

    Attributes:
      promised: length of the audio according to the header, in bytes.
      held: number of these bytes that are in the file.
      unread: number of bytes after the audio that do not belong to a chunk. If the stated length of
        the audio is too small, these are the rest of the audio. Up to `PADDING_BYTES` count as 0.
    """

    promised: int = 0
    held: int = 0
    unread: int = 0


def audio_chunk(source: Source) -> AudioChunk:
    """Find the audio chunk of a WAV or AIFF file."""
    order: Literal["big", "little"] = "big" if source.at(0, 4) in BIG else "little"
    place, heard, long_bytes = 12, False, 0
    promised = held = 0
    while place + 8 <= source.size:
        head = source.at(place, 8)
        name, length = head[:4], int.from_bytes(head[4:], order)
        if name == b"ds64":  # holds the length of the sound if it does not fit into four bytes
            long_bytes = int.from_bytes(source.at(place + 16, 8), "little")
        if name in OFFSET_BYTES and length == 0xFFFFFFFF and long_bytes:
            length = long_bytes
        end = place + 8 + length
        if not PRINTABLE.issuperset(name) or (heard and end > source.size):
            break
        if name in OFFSET_BYTES and not heard:
            promised = max(0, length - OFFSET_BYTES[name])
            held = max(0, min(promised, source.size - place - 8 - OFFSET_BYTES[name]))
        heard = heard or name in OFFSET_BYTES
        place = end + length % 2
    left = source.size - place
    return AudioChunk(promised, held, left if heard and left > PADDING_BYTES else 0)


def ogg_links(source: Source, start: int) -> list[range]:
    """Return the byte ranges of the chained Ogg streams; the first page begins at `start`."""
    starts: list[int] = []
    place, opening = start, False
    while place >= 0:
        head = source.at(place, OGG_HEAD_BYTES)
        if len(head) < OGG_HEAD_BYTES or not head.startswith(OGG):
            place = source.find(OGG, place + 1)
            continue
        first = bool(head[5] & FIRST_PAGE)
        if first and not opening:  # the first pages of multiplexed streams are consecutive
            starts.append(place)
        opening = first
        place += OGG_HEAD_BYTES + head[26] + sum(source.at(place + OGG_HEAD_BYTES, head[26]))
    return [range(a, b) for a, b in zip(starts, [*starts[1:], source.size], strict=True)]


MARK = b"fLaC"
BLOCK = b"\x00\x00\x22"  # type and length of the first metadata block, after its "last" bit
TOTAL_AT, TOTAL_BITS = 18, 36  # offset of 8 bytes whose last 36 bits are the number of samples
HEAD_BYTES = TOTAL_AT + 8
TAIL_BYTES = 1 << 16  # the last frame begins within this many bytes of the end
_BLOCK_SAMPLES = {1: 192, **{n: 576 << (n - 2) for n in range(2, 6)}}
_BLOCK_SAMPLES |= {n: 256 << (n - 8) for n in range(8, 16)}


def flac_streams(source: Source, start: int) -> list[range]:
    """Return the byte ranges of consecutive FLAC streams; the first one begins at `start`."""
    starts = [start]
    while (found := _next_flac(source, starts[-1] + len(MARK))) >= 0:
        starts.append(found)
    return [range(a, b) for a, b in zip(starts, [*starts[1:], source.size], strict=True)]


def _next_flac(source: Source, start: int) -> int:
    while (found := source.find(MARK, start)) >= 0:
        after = source.at(found + len(MARK), 4)
        if after[:1] in (b"\x00", b"\x80") and after[1:] == BLOCK:
            return found
        start = found + 1
    return -1


def total_of(head: bytes) -> int:
    """Return the number of samples that the beginning of a stream promises; 0: unknown."""
    return int.from_bytes(head[TOTAL_AT : TOTAL_AT + 8], "big") & ((1 << TOTAL_BITS) - 1)


def as_file(source: Source, stream: range) -> list[bytes | range] | None:
    """Return the pieces of a file that a decoder reads to the end; None: the unchanged stream.

    If the header's number of samples is missing or too small, it is replaced by 0, "unknown".
    """
    head = source.at(stream.start, HEAD_BYTES)
    if len(head) < HEAD_BYTES:
        return None
    bits = int.from_bytes(head[TOTAL_AT:], "big")
    total = total_of(head)
    if total and _last_sample(source, stream, head) <= total:
        return None
    without = (bits >> TOTAL_BITS << TOTAL_BITS).to_bytes(8, "big")
    return [head[:TOTAL_AT] + without, range(stream.start + len(head), stream.stop)]


def _last_sample(source: Source, stream: range, head: bytes) -> int:
    """Return the sample number at the end of the last frame; 0 if no frame is found."""
    first = max(stream.start, stream.stop - TAIL_BYTES)
    tail = source.at(first, stream.stop - first)
    fixed = int.from_bytes(head[10:12], "big")  # samples per block, if the block size is fixed
    last, place = 0, tail.find(b"\xff")
    while place >= 0:
        last = max(last, _end_of_frame(tail[place : place + 16], fixed))
        place = tail.find(b"\xff", place + 1)
    return last


def _end_of_frame(data: bytes, fixed: int) -> int:
    if len(data) < 16 or data[1] & 0xFE != 0xF8 or data[3] & 1:
        return 0
    size, rate = data[2] >> 4, data[2] & 15
    coded = len(f"{data[4] ^ 0xFF:08b}".split("1", 1)[0])  # leading ones, as in UTF-8
    length = max(1, coded)
    if coded in (1, 8) or size == 0 or rate == 15:
        return 0
    number = data[4] & (0x7F if not coded else 0x7F >> coded)
    for each in data[5 : 4 + length]:
        number = number << 6 | each & 0x3F
    place = 4 + length
    extra = {6: 1, 7: 2}.get(size, 0)
    samples = 1 + int.from_bytes(data[place : place + extra], "big")
    samples = samples if extra else _BLOCK_SAMPLES[size]
    place += extra + {12: 1, 13: 2, 14: 2}.get(rate, 0)
    if _crc8(data[:place]) != data[place]:
        return 0
    return (number if data[1] & 1 else number * fixed) + samples


def _crc8(data: bytes) -> int:
    value = 0
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value << 1 ^ 0x07) & 0xFF if value & 0x80 else value << 1
    return value


# {(version, layer): kbit/s of the bit rate indices 1 to 14}; version 2 includes 2.5.
_RATES = {
    (1, 1): (32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (1, 2): (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (1, 3): (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (2, 1): (32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (2, 2): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (2, 3): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_VERSIONS = {3: 1, 2: 2, 0: 2}  # {two bits of the header: version}; 0 is version 2.5
_HERTZ = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8_000)}
_MONO = 3
CERTAIN_FRAMES = 3  # consecutive frames that hardly occur by chance in other data
HEADER_BYTES = 48  # bytes of a frame to read, which include the number of frames
TAGS = (b"TAG", b"ID3", b"APETAGEX", b"LYRICSBEGIN")  # markers that may follow the sound


class Frame(NamedTuple):
    """A frame of MPEG audio.

    Attributes:
      sort: version, layer, sample rate, and whether it is mono; constant within a stream.
      counted: number of frames in the encoder's header, if the frame contains such a header instead
        of audio; 0: the header contains no number; None: the frame contains audio.
    """

    length: int
    samples: int
    sort: tuple[int, int, int, bool]
    counted: int | None


@dataclasses.dataclass
class Stream:
    """A stream of frames with the same format.

    Attributes:
      head: byte range of the frame with the encoder's header, or None.
      counted: number of audio frames according to the encoder's header.
      pieces: byte ranges of the audio frames.
      first: first 4 bytes of the first audio frame.
      rates: bit rate indices of the frames.
    """

    head: range | None
    counted: int
    sort: tuple[int, int, int, bool]
    samples: int
    pieces: list[range] = dataclasses.field(default_factory=list)
    frames: int = 0
    first: bytes = b""
    rates: set[int] = dataclasses.field(default_factory=set)

    def add(self, place: int, length: int, header: bytes) -> None:
        """Add an audio frame that starts at `place` with the 4 bytes `header`."""
        self.frames += 1
        self.first = self.first or header
        self.rates.add(header[2] >> 4)
        if self.pieces and self.pieces[-1].stop == place:
            self.pieces[-1] = range(self.pieces[-1].start, place + length)
        else:
            self.pieces.append(range(place, place + length))

    @property
    def is_counted(self) -> bool:
        """Return whether the encoder's header announces at least as many frames as there are."""
        return self.head is not None and self.counted >= self.frames

    @property
    def is_plain(self) -> bool:
        """Return whether a decoder reads all frames: one piece, one rate or counted in a header."""
        constant = self.head is None and len(self.rates) == 1
        return len(self.pieces) == 1 and (constant or self.is_counted)

    def as_file(self) -> list[bytes | range]:
        """Return the pieces of a file that a decoder reads to the end."""
        if self.is_counted and self.head is not None:
            return [self.head, *self.pieces]
        return [*([_counting(self.first, self.frames)] if self.sort[1] == 3 else []), *self.pieces]


def mpeg_streams(source: Source, start: int) -> list[Stream]:
    """Find the MPEG audio streams that begin at or after a position."""
    found: list[Stream] = []
    place = _next_mpeg(source, start)
    while place >= 0:
        data = source.at(place, HEADER_BYTES)
        frame = _frame(data)
        if frame is None or place + frame.length > source.size:
            place = _next_mpeg(source, place + (1 if frame else 0))
            continue
        here = range(place, place + frame.length)
        if frame.counted is not None:
            found.append(Stream(here, frame.counted, frame.sort, frame.samples))
        else:
            if not found or found[-1].sort != frame.sort:
                found.append(Stream(None, 0, frame.sort, frame.samples))
            found[-1].add(place, frame.length, data[:4])
        place = here.stop
    return [stream for stream in found if stream.frames]


def _frame(data: bytes) -> Frame | None:
    if len(data) < 4 or data[0] != 0xFF or data[1] & 0xE0 != 0xE0:
        return None
    version, layer = (data[1] >> 3) & 3, 4 - ((data[1] >> 1) & 3)
    rate, hertz = data[2] >> 4, (data[2] >> 2) & 3
    if version == 1 or layer == 4 or rate in (0, 15) or hertz == 3:
        return None
    kind = _VERSIONS[version]
    hz, bits = _HERTZ[version][hertz], 1000 * _RATES[kind, layer][rate - 1]
    samples = 384 if layer == 1 else 576 if (kind, layer) == (2, 3) else 1152
    padding = (data[2] >> 1) & 1
    length = 4 * (12 * bits // hz + padding) if layer == 1 else samples // 8 * bits // hz + padding
    mono = data[3] >> 6 == _MONO
    return Frame(
        length, samples, (version, layer, hz, mono), _count_frames(data, kind, layer, mono)
    )


def _certain_frame(data: bytes) -> Frame:
    """Parse the frame that begins with `data`; raise ValueError if it is not a frame."""
    if (frame := _frame(data)) is None:
        raise ValueError(f"`data` must begin with the header of a frame, got {data[:4].hex()}.")
    return frame


def _count_frames(data: bytes, kind: int, layer: int, mono: bool) -> int | None:
    if layer != 3:
        return None
    place = 4 + _side_bytes(kind, mono)
    if data[place : place + 4] in (b"Xing", b"Info"):
        says = data[place + 7] & 1
        return int.from_bytes(data[place + 8 : place + 12], "big") if says else 0
    if data[36:40] == b"VBRI":
        return 0  # the number is beyond the bytes that are read here
    return None


def _side_bytes(kind: int, mono: bool) -> int:
    return (17 if mono else 32) if kind == 1 else (9 if mono else 17)


def _next_mpeg(source: Source, start: int) -> int:
    while 0 <= start < source.size:
        if _is_certain(source, start):
            return start
        start = source.find(b"\xff", start + 1)
    return -1


def _is_certain(source: Source, place: int) -> bool:
    sort = None
    for number in range(CERTAIN_FRAMES):
        data = source.at(place, HEADER_BYTES)
        if number and (not data or data.startswith(TAGS)):
            return True
        frame = _frame(data)
        if frame is None or (sort or frame.sort) != frame.sort:
            return False
        sort, place = frame.sort, place + frame.length
    return True


def _counting(first: bytes, frames: int) -> bytes:
    plain = bytes([first[0], first[1] | 1, (first[2] & 0x0D) | 0x90, first[3]])
    length, _, (version, _, _, mono), _ = _certain_frame(plain)
    start = plain + bytes(_side_bytes(_VERSIONS[version], mono))
    start += b"Xing" + (1).to_bytes(4, "big") + frames.to_bytes(4, "big")
    return start.ljust(length, b"\0")


TAG_BYTES = 10  # size of the header of an ID3 tag, which may precede any sound
# A writer that cannot go back to the header, or has not yet done so, promises at least this many
# bytes, to say that the length is unknown.
UNKNOWN_BYTES = 0x7FFFF000


class Found(NamedTuple):
    """The audio streams in a file.

    Attributes:
      streams: for each stream, the pieces of a file that can be decoded; empty if the file can
        be decoded as it is.
      samples: number of samples per channel in each stream; 0 if not counted.
      endless: whether a header says that the length of the audio is unknown, so that the file may
        still be being written.
    """

    streams: list[list[bytes | range]]
    samples: list[int]
    chunk: AudioChunk = AudioChunk()
    endless: bool = False

    @property
    def has_own_length(self) -> bool:
        """Return whether one header accounts for all of the audio."""
        return not (self.streams or self.chunk.unread or self.endless)


def found_in(source: Source) -> Found:
    """Find the audio streams in a file."""
    head = source.at(0, 4)
    if head in LITTLE + BIG:
        chunk = audio_chunk(source)
        return Found([], [], chunk, chunk.promised >= UNKNOWN_BYTES and chunk.promised > chunk.held)
    start = _after_tags(source)
    head = source.at(start, 4)
    if head == MARK:
        return _of_flac(source, start)
    if head == OGG:
        links = ogg_links(source, start)
        if len(links) < 2:
            return Found([], [])
        return Found([[link] for link in links], [0] * len(links))
    if start or head[:1] == b"\xff":
        return _of_mpeg(source, start)
    return Found([], [])


def _after_tags(source: Source) -> int:
    place = 0
    while (head := source.at(place, TAG_BYTES)).startswith(b"ID3") and len(head) == TAG_BYTES:
        length = 0
        for byte in head[6:]:
            length = length << 7 | byte & 0x7F
        place += TAG_BYTES + length + (TAG_BYTES if head[5] & 0x10 else 0)
    return place


def _of_flac(source: Source, start: int) -> Found:
    streams = flac_streams(source, start)
    files = [as_file(source, stream) for stream in streams]
    if len(streams) == 1 and files[0] is None:
        return Found([], [])
    made = [file or [stream] for file, stream in zip(files, streams, strict=True)]
    endless = any(not total_of(source.at(stream.start, HEAD_BYTES)) for stream in streams)
    return Found(made, [0] * len(made), endless=endless)


def _of_mpeg(source: Source, start: int) -> Found:
    streams = mpeg_streams(source, start)
    if not streams or (len(streams) == 1 and streams[0].is_plain):
        return Found([], [])
    samples = [0 if s.is_counted else s.frames * s.samples for s in streams]
    return Found([stream.as_file() for stream in streams], samples)
