"""Detection of all audio streams in an audio file, independently of the lengths in its headers.

A decoder stops where a header says that the audio ends. Files that were concatenated, or whose
headers contain estimated or wrong lengths, contain more audio than that.
"""

from wavenet.data.streams.containers import AudioChunk
from wavenet.data.streams.found import UNKNOWN_BYTES, Found, found_in
from wavenet.data.streams.source import Pieces, Source

__all__ = ["UNKNOWN_BYTES", "AudioChunk", "Found", "Pieces", "Source", "found_in"]
