"""Training data: audio files, folders with metadata, prepared corpora and random clips.

Only `clips` imports TensorFlow.
"""

from wavenet.data.corpus import (
    Corpus,
    Prepared,
    frames_of,
    prepare,
    recordings_of,
)
from wavenet.data.recordings import SPLITS, DataError, ScanRules, scan

__all__ = [
    "SPLITS",
    "Corpus",
    "DataError",
    "Prepared",
    "ScanRules",
    "frames_of",
    "prepare",
    "recordings_of",
    "scan",
]
