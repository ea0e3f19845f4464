"""The streams of a sound file, found in its bytes and not by a decoder's count.

A decoder stops where a header says that the sound ends. Files joined end to end, headers that
estimate and headers that are wrong hold more than that.
"""

from wavenet.data.streams.found import Found, found_in
from wavenet.data.streams.source import Pieces, Source

__all__ = ["Found", "Pieces", "Source", "found_in"]
