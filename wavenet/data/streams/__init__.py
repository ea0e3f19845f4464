"""The streams of a sound file, found in its bytes instead of by a decoder's count.

A decoder stops where a header says that the sound ends. Files that were concatenated, or whose
headers estimate or are wrong, hold more than that.
"""

from wavenet.data.streams.found import Found, found_in
from wavenet.data.streams.source import Pieces, Source

__all__ = ["Found", "Pieces", "Source", "found_in"]
