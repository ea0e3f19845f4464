"""Parsing of audio containers: pages of Ogg files, and chunks of WAV and AIFF files.

A chained Ogg file contains consecutive streams, each with separate pages. In a WAV or AIFF file,
bytes after the audio that do not form a chunk are not accounted for by the header.
"""

import string
from typing import Literal, NamedTuple

from wavenet.data.streams.source import Source

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
