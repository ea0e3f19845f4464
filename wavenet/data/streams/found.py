"""Detection of a file's audio streams, depending on the format in its first bytes."""

from typing import NamedTuple

from wavenet.data.streams import containers, flac, mpeg
from wavenet.data.streams.containers import AudioChunk
from wavenet.data.streams.source import Source

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
    if head in containers.LITTLE + containers.BIG:
        chunk = containers.audio_chunk(source)
        return Found([], [], chunk, chunk.promised >= UNKNOWN_BYTES and chunk.promised > chunk.held)
    start = _after_tags(source)
    head = source.at(start, 4)
    if head == flac.MARK:
        return _of_flac(source, start)
    if head == containers.OGG:
        links = containers.ogg_links(source, start)
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
    streams = flac.streams(source, start)
    files = [flac.as_file(source, stream) for stream in streams]
    if len(streams) == 1 and files[0] is None:
        return Found([], [])
    made = [file or [stream] for file, stream in zip(files, streams, strict=True)]
    endless = any(not flac.total_of(source.at(stream.start, flac.HEAD_BYTES)) for stream in streams)
    return Found(made, [0] * len(made), endless=endless)


def _of_mpeg(source: Source, start: int) -> Found:
    streams = mpeg.streams(source, start)
    if not streams or (len(streams) == 1 and streams[0].is_plain):
        return Found([], [])
    samples = [0 if s.is_counted else s.frames * s.samples for s in streams]
    return Found([stream.as_file() for stream in streams], samples)
