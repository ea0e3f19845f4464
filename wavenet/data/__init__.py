"""Recordings: sound files, folders of them with their metadata, prepared corpora, random clips.

Everything here is NumPy; `wavenet.data.pipeline` makes a tf.data pipeline of it.
"""

from wavenet.data.batch_sampling import clip_source
from wavenet.data.corpus import (
    Corpus,
    Prepared,
    frames_of,
    prepare,
    recordings_of,
)
from wavenet.data.metadata import SPLITS
from wavenet.data.recordings import DataError, ScanRules, scan

__all__ = [
    "SPLITS",
    "Corpus",
    "DataError",
    "Prepared",
    "ScanRules",
    "clip_source",
    "frames_of",
    "prepare",
    "recordings_of",
    "scan",
]
