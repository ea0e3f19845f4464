"""Detection of FLAC streams, and of frames beyond the length in a stream's header."""

from wavenet.data.streams.source import Source

MARK = b"fLaC"
BLOCK = b"\x00\x00\x22"  # type and length of the first metadata block, after its "last" bit
TOTAL_AT, TOTAL_BITS = 18, 36  # offset of 8 bytes whose last 36 bits are the number of samples
HEAD_BYTES = TOTAL_AT + 8
TAIL_BYTES = 1 << 16  # the last frame begins within this many bytes of the end
_BLOCK_SAMPLES = {1: 192, **{n: 576 << (n - 2) for n in range(2, 6)}}
_BLOCK_SAMPLES |= {n: 256 << (n - 8) for n in range(8, 16)}


def streams(source: Source, start: int) -> list[range]:
    """Return the byte ranges of consecutive FLAC streams; the first one begins at `start`."""
    starts = [start]
    while (found := _next(source, starts[-1] + len(MARK))) >= 0:
        starts.append(found)
    return [range(a, b) for a, b in zip(starts, [*starts[1:], source.size], strict=True)]


def _next(source: Source, start: int) -> int:
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
