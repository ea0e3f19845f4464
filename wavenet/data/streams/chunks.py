"""Chunks of WAV and AIFF files: what lies behind the sound, and is none of them."""

import string
from typing import Literal

from wavenet.data.streams.source import Source

LITTLE, BIG = (b"RIFF", b"RF64"), (b"FORM", b"RIFX")
SOUND = (b"data", b"SSND")
PRINTABLE = frozenset(string.printable.encode())
PADDING_BYTES = 1024  # that programs leave behind a file without a meaning


def unread_bytes(source: Source) -> int:
    """Return the bytes behind the sound that belong to no chunk, 0 for a few.

    A chunk of sound whose length is too small is followed by the rest of the sound.
    """
    order: Literal["big", "little"] = "big" if source.at(0, 4) in BIG else "little"
    place, heard, long_bytes = 12, False, 0
    while place + 8 <= source.size:
        head = source.at(place, 8)
        name, length = head[:4], int.from_bytes(head[4:], order)
        if name == b"ds64":  # the length of the sound, where four bytes cannot tell it
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
