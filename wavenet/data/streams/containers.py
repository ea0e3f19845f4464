"""Parsing of audio containers: pages of Ogg files, and chunks of WAV and AIFF files.

A chained Ogg file contains consecutive streams, each with separate pages. In a WAV or AIFF file,
bytes after the audio that do not form a chunk are not accounted for by the header.
"""

import string
from typing import Literal

from wavenet.data.streams.source import Source

OGG = b"OggS"
OGG_HEAD_BYTES = 27
FIRST_PAGE = 2  # flag of a stream's first page
LITTLE, BIG = (b"RIFF", b"RF64"), (b"FORM", b"RIFX")
SOUND = (b"data", b"SSND")
PRINTABLE = frozenset(string.printable.encode())
PADDING_BYTES = 1024  # maximum size of meaningless padding that programs append


def unread_bytes(source: Source) -> int:
    """Return the number of bytes after the audio that do not belong to a chunk.

    If the stated length of the audio chunk is too small, these bytes are the rest of the audio. Up
    to `PADDING_BYTES` bytes count as 0.
    """
    order: Literal["big", "little"] = "big" if source.at(0, 4) in BIG else "little"
    place, heard, long_bytes = 12, False, 0
    while place + 8 <= source.size:
        head = source.at(place, 8)
        name, length = head[:4], int.from_bytes(head[4:], order)
        if name == b"ds64":  # holds the length of the sound if it does not fit into four bytes
            long_bytes = int.from_bytes(source.at(place + 16, 8), "little")
        if name in SOUND and length == 0xFFFFFFFF and long_bytes:
            length = long_bytes
        end = place + 8 + length
        if not PRINTABLE.issuperset(name) or (heard and end > source.size):
            break
        heard = heard or name in SOUND
        place = end + length % 2
    left = source.size - place
    return left if heard and left > PADDING_BYTES else 0


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
