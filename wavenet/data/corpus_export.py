"""Export of a corpus to an npz file, for training without TensorFlow."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from onepass.foundation.folders import show_path
from wavenet.data.corpus import Corpus, frames_of, silent_frame, write_arrays


def _concatenate_arrays(arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    lengths = [len(array) for array in arrays]
    return np.concatenate(arrays), np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _description(corpus: Corpus, features: Sequence[str]) -> str:
    values = {
        "sample_rate_hz": corpus.sample_rate_hz,
        "hop_samples": corpus.hop_samples if features else 1,
        "gain_db": corpus.gain_db,
        "features": list(features),
        "speakers": list(corpus.speakers),
        "num_train_speakers": corpus.num_train_speakers,
        "mel": corpus.mel.to_dict() if corpus.mel else None,
        "pitch": corpus.pitch.to_dict() if corpus.pitch else None,
    }
    return json.dumps(values)


def export_npz(corpus: Corpus, path: str | os.PathLike[str], features: Sequence[str] = ()) -> None:
    """Write a corpus to one npz file, from which `batch_sampling.open_batches` draws batches.

    Each split with recordings has `SPLIT_waveform` int16 [all samples] and `SPLIT_offsets` int64
    [recordings + 1], where recording i is waveform[offsets[i]:offsets[i + 1]]; `SPLIT_speaker`
    int32 [recordings]; `SPLIT_names`; and, with features, `SPLIT_frames` float32 [all frames,
    channels] and `SPLIT_frame_offsets`. The file also contains `description`, in JSON, and, with
    features, `silent_frame` float32 [channels].
    """
    arrays = {"description": np.array(_description(corpus, features))}
    if features:
        arrays["silent_frame"] = silent_frame(corpus, features)
    for split, members in corpus.splits.items():
        if not members:
            continue
        joined, offsets = _concatenate_arrays([p.waveform for p in members])
        arrays[f"{split}_waveform"], arrays[f"{split}_offsets"] = joined, offsets
        arrays[f"{split}_speaker"] = np.array([p.speaker for p in members], np.int32)
        arrays[f"{split}_names"] = np.array([show_path(p.name) for p in members])
        if features:
            joined, offsets = _concatenate_arrays([frames_of(corpus, p, features) for p in members])
            arrays[f"{split}_frames"], arrays[f"{split}_frame_offsets"] = joined, offsets
    write_arrays(Path(path), arrays)
