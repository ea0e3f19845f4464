"""Links of a chained Ogg file: streams one after another, each with pages of its own."""

from wavenet.data.streams.source import Source

MARK = b"OggS"
HEAD_BYTES = 27
FIRST = 2  # the bit of a stream's first page


def streams(source: Source, start: int) -> list[range]:
    """Return the ranges of the links from a place on, which begins with a page."""
    starts: list[int] = []
    place, opening = start, False
    while place >= 0:
        head = source.at(place, HEAD_BYTES)
        if len(head) < HEAD_BYTES or not head.startswith(MARK):
            place = source.find(MARK, place + 1)
            continue
        first = bool(head[5] & FIRST)
        if first and not opening:  # streams that play at once all begin before the rest
            starts.append(place)
        opening = first
        place += HEAD_BYTES + head[26] + sum(source.at(place + HEAD_BYTES, head[26]))
    return [range(a, b) for a, b in zip(starts, [*starts[1:], source.size], strict=True)]
