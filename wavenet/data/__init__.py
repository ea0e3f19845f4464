"""Recordings: sound files, folders of them with their metadata, prepared corpora, random clips.

Everything here is NumPy; `wavenet.data.pipeline` makes a tf.data pipeline of it.
"""

from wavenet.data.audio import AudioError
from wavenet.data.batch_sampling import ClipSource, batch, clip_source
from wavenet.data.corpus import (
    Corpus,
    Prepared,
    export_npz,
    frames_of,
    full_recordings,
    prepare,
    recordings_of,
    silent_frame,
)
from wavenet.data.metadata import SPLITS
from wavenet.data.recordings import DataError, Recording, ScanReport, ScanRules, scan

__all__ = [
    "SPLITS",
    "AudioError",
    "ClipSource",
    "Corpus",
    "DataError",
    "Prepared",
    "Recording",
    "ScanReport",
    "ScanRules",
    "batch",
    "clip_source",
    "export_npz",
    "frames_of",
    "full_recordings",
    "prepare",
    "recordings_of",
    "scan",
    "silent_frame",
]
