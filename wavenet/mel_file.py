"""Mel frames that come in a file: read, and held against what a model was trained on."""

from pathlib import Path
from typing import Any

import numpy as np

from replicator.runs.errors import UserError
from wavenet.features.frame_statistics import unlike
from wavenet.features.mel import above_silence


def read_frames(path: Path, model: Any, force: bool = False) -> np.ndarray:
    """Return the frames of an npy file as a model reads them, float32 [frames, bands].

    Args:
      path: of an npy file of logarithms, [frames, bands].
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
            raise UserError(f"{path} is of another convention: {why}. --force speaks it anyway.")
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
    if shape is None or mel.dtype.kind not in "fiu" or len(shape) != 2 or shape[1] != bands:
        raise UserError(
            f"{path} must hold numbers [frames, {bands}], got {shape}{_hint(shape, bands)}."
        )
    if not len(mel):
        raise UserError(f"{path} holds no frame.")
    bad = ~np.isfinite(mel).all(axis=1)
    if bad.any():
        raise UserError(f"{path} holds a value that is no number (NaN), first in {bad.argmax()}.")
    return mel.astype(np.float32)


def _hint(shape: tuple[int, ...] | None, bands: int) -> str:
    """What may be wrong with a shape, as the end of a sentence."""
    if shape is not None and len(shape) == 3 and shape[0] == 1 and bands in shape[1:]:
        turned = ".T" if shape[1] == bands else ""
        return f": a batch of one, save mel[0]{turned}"
    if shape is not None and len(shape) == 2 and shape[0] == bands:
        return ": it is transposed, save mel.T"
    return ""
