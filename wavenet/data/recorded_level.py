"""The level of a recording: changed to the model's for the frames, and restored in the sound.

A model is trained on recordings at one level, and its sounds have that level too; divided by the
recording's gain, they are as loud as the recording.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from wavenet.data.audio import amplify, peak_db, rms_db
from wavenet.features.frames_in_pieces import FramesInPieces

HEADROOM_DB = 0.3  # of a peak below full scale: what resampling may add to it
NEAR_DB = 6.0  # about how far the recordings of one training set lie from their median
SILENCE_DB = -80.0  # RMS below which there is no voice to be brought to a level
KNEE = 0.95  # of full scale, above which peaks are compressed


class RecordedFrames(np.ndarray):
    """Frames of a recording, float32 [frames, channels], with its gain, `gain_db`.

    Frames that were drawn with the detail of recordings also belong to this class, with a gain of
    0: a student refines the sounds of both by default. A sound that a model generates from them has
    the recording's level. `np.asarray` turns them into plain frames, whose sound has the model's
    level.
    """

    gain_db = 0.0

    def __array_finalize__(self, origin: Any) -> None:
        """Keep the gain in a slice."""
        self.gain_db = getattr(origin, "gain_db", 0.0)


def recorded_frames(frames: np.ndarray, gain_db: float) -> RecordedFrames:
    """Return the frames of a recording that was amplified by `gain_db`."""
    made = np.asarray(frames, np.float32).view(RecordedFrames)
    made.gain_db = float(gain_db)
    return made


def is_recorded(condition: Any) -> bool:
    """Return whether frames come from a recording, or were drawn with the detail of one."""
    return isinstance(condition, RecordedFrames | FramesInPieces)


def gain_of(condition: Any) -> float:
    """Return the gain of the recording that frames come from, in dB; 0 for plain frames."""
    return getattr(condition, "gain_db", 0.0)


def level_gain_db(waveform: np.ndarray, gain_db: float, level_db: float | None) -> float:
    """Return the gain that brings a recording to a model's level, in dB.

    It is the gain of the training recordings if the recording is about as loud as they are; else
    the gain that brings its RMS within `NEAR_DB` of theirs. No peak is amplified above full scale.

    Args:
      waveform: float [samples], as stored.
      gain_db: gain of the recordings that the model was trained on, in dB.
      level_db: RMS of the recordings that the model was trained on, in dB of full scale, after the
        gain; None if it is unknown.
    """
    return gain_of_levels_db(rms_db(waveform), peak_db(waveform), gain_db, level_db)


def gain_of_levels_db(
    stored_db: float, peak: float, gain_db: float, level_db: float | None
) -> float:
    """Return the gain of `level_gain_db` for a recording with this RMS and this peak, in dB."""
    if level_db is not None and stored_db > SILENCE_DB:
        near = (level_db - NEAR_DB - stored_db, level_db + NEAR_DB - stored_db)
        gain_db = float(np.clip(gain_db, *near))
    return min(gain_db, below_full_scale_db(peak))


def below_full_scale_db(peak: float) -> float:
    """Return the largest gain in dB that keeps a peak below full scale; at least 0."""
    return max(0.0, -HEADROOM_DB - peak)


def level_of(spec: Mapping[str, Any]) -> float | None:
    """Return a model.json's `level_db` for `level_gain_db`: as measured, or else as intended."""
    data = spec.get("config", {}).get("data") or {}
    return spec.get("level_db", data.get("level_db"))


def at_recorded_level(sound: np.ndarray, gain_db: float) -> np.ndarray:
    """Return a model's sound at the level of a recording that was amplified by `gain_db`.

    Peaks beyond full scale are compressed to stay below it, sample by sample, so that a sound does
    not depend on its chunks.
    """
    if not gain_db:
        return sound
    given_back = amplify(sound, -gain_db)
    return given_back if gain_db > 0 else bent(given_back)


def bent(waveform: np.ndarray) -> np.ndarray:
    """Return the waveform with all above `KNEE` smoothly compressed to stay below full scale."""
    size = np.abs(waveform)
    above = KNEE + (1.0 - KNEE) * np.tanh((size - KNEE) / (1.0 - KNEE))
    return np.where(size > KNEE, np.sign(waveform) * above, waveform).astype(np.float32)
