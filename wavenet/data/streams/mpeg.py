"""Detection of MPEG audio streams by counting their frames.

If a header contains the number of frames (Xing, Info, VBRI), a decoder stops after that number,
whatever follows; otherwise it estimates the number from the length of the first frame.
"""

import dataclasses
from typing import NamedTuple

from wavenet.data.streams.source import Source

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


def streams(source: Source, start: int) -> list[Stream]:
    """Find the MPEG audio streams that begin at or after a position."""
    found: list[Stream] = []
    place = _next(source, start)
    while place >= 0:
        data = source.at(place, HEADER_BYTES)
        frame = _frame(data)
        if frame is None or place + frame.length > source.size:
            place = _next(source, place + (1 if frame else 0))
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


def _next(source: Source, start: int) -> int:
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
