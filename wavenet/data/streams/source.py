"""Random access to the bytes of a file, and a virtual file composed of pieces of another file."""

import bisect
import io
from typing import Any, BinaryIO

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
