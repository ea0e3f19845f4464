"""Mel frames from a file, compared with those of a model's training."""

from pathlib import Path
from typing import Any

import numpy as np

from replicator.runs.errors import UserError
from wavenet.features.frame_statistics import unlike
from wavenet.features.mel import above_silence


def read_frames(path: Path, model: Any, force: bool = False) -> np.ndarray:
    """Return the frames of an npy file as a model reads them, float32 [frames, bands].

    Args:
      path: an npy file of logarithms, [frames, bands], or as HiFi-GAN stores them, [bands, frames]
        or [1, bands, frames].
      model: a model of speech that reads mel frames alone.
      force: take them even if they do not look like the model's.

    Raises:
      UserError: naming the file, if it is none, or not of the model's convention.
    """
    mel = read_mel(path, model)
    convention, trained = model.data.mel(model.hop_samples), model.frame_statistics
    frames = above_silence(mel, convention)
    if trained is not None and not force:
        why = unlike(frames, trained, convention)
        if why:
            raise UserError(f"{path} is of another convention: {why}. --force takes it anyway.")
    return frames


def read_mel(path: Path, model: Any) -> np.ndarray:
    """Return the numbers in an npy file, float32 [frames, bands], fit for the model.

    Raises:
      UserError: naming the file, if it holds anything else.
    """
    try:
        mel = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path} cannot be read as an npy file.") from error
    bands, shape = model.data.mel_bands, getattr(mel, "shape", None)
    if shape is not None and len(shape) == 3 and shape[0] == 1:
        mel = mel[0]
    if shape is not None and mel.ndim == 2 and mel.shape[0] == bands != mel.shape[1]:
        mel = mel.T
    if shape is None or mel.ndim != 2 or mel.shape[1] != bands or mel.dtype.kind not in "fiu":
        raise UserError(
            f"{path} must hold numbers [frames, {bands}], [{bands}, frames] or [1, {bands}, "
            f"frames], got {shape}."
        )
    if not len(mel):
        raise UserError(f"{path} has no frames.")
    bad = ~np.isfinite(mel).all(axis=1)
    if bad.any():
        raise UserError(f"{path} contains NaN or infinity, first in frame {bad.argmax()}.")
    return mel.astype(np.float32)
