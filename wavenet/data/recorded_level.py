"""Conversion between the level of a recording and the level of a model's training data.

A recording is brought to the model's level to compute frames. Sounds that the model generates from
them have the model's level, and are brought back to the recording's level.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from wavenet.data.audio import amplify, peak_db, rms_db
from wavenet.features.frames_in_pieces import FramesInPieces

HEADROOM_DB = 0.3  # margin below full scale, since resampling can raise peaks
NEAR_DB = 6.0  # typical difference between a training recording's level and the median
SILENCE_DB = -80.0  # recordings with a lower RMS are treated as silent
KNEE = 0.95  # amplitude above which peaks are compressed


class RecordedFrames(np.ndarray):
    """Frames of a recording, float32 [frames, channels], with the applied gain `gain_db`.

    Sounds generated from these frames have the recording's level; sounds generated from plain
    arrays (`np.asarray`) have the model's level. Frames that a voice draws from a density also have
    this type, with a gain of 0. By default, students refine sounds from frames of this type.
    """

    gain_db = 0.0

    def __array_finalize__(self, origin: Any) -> None:
        """Copy the gain to slices and views."""
        self.gain_db = getattr(origin, "gain_db", 0.0)


def recorded_frames(frames: np.ndarray, gain_db: float) -> RecordedFrames:
    """Return frames as `RecordedFrames` of a recording that was amplified by `gain_db`."""
    made = np.asarray(frames, np.float32).view(RecordedFrames)
    made.gain_db = float(gain_db)
    return made


def is_recorded(condition: Any) -> bool:
    """Return whether frames are from a recording, or were drawn from a voice's density."""
    return isinstance(condition, RecordedFrames | FramesInPieces)


def gain_of(condition: Any) -> float:
    """Return the gain in dB that was applied to the frames' recording; 0 for plain frames."""
    return getattr(condition, "gain_db", 0.0)


def level_gain_db(waveform: np.ndarray, gain_db: float, level_db: float | None) -> float:
    """Return the gain in dB that brings a recording to a model's level.

    It is the gain of the training recordings, adjusted if necessary so that the RMS is within
    `NEAR_DB` of theirs and the peak is not amplified above full scale. The RMS of a silent
    recording is ignored.

    Args:
      waveform: float [samples], at its stored level.
      gain_db: gain that was applied to the training recordings, in dB.
      level_db: RMS of the training recordings after the gain, in dB of full scale; None if unknown.
    """
    return gain_of_levels_db(rms_db(waveform), peak_db(waveform), gain_db, level_db)


def gain_of_levels_db(
    stored_db: float, peak: float, gain_db: float, level_db: float | None
) -> float:
    """Return `level_gain_db` for a recording with RMS `stored_db` and peak `peak`, in dB."""
    if level_db is not None and stored_db > SILENCE_DB:
        near = (level_db - NEAR_DB - stored_db, level_db + NEAR_DB - stored_db)
        gain_db = float(np.clip(gain_db, *near))
    return min(gain_db, below_full_scale_db(peak))


def below_full_scale_db(peak: float) -> float:
    """Return the largest gain in dB that keeps a peak, in dB, `HEADROOM_DB` below full scale.

    It is at least 0.
    """
    return max(0.0, -HEADROOM_DB - peak)


def level_of(spec: Mapping[str, Any]) -> float | None:
    """Return the measured `level_db` in a model.json, else the configured one, else None."""
    data = spec.get("config", {}).get("data") or {}
    return spec.get("level_db", data.get("level_db"))


def at_recorded_level(sound: np.ndarray, gain_db: float) -> np.ndarray:
    """Undo the gain `gain_db` of a recording in a model's sound.

    If the gain is negative, peaks are compressed to stay below full scale. This is done sample by
    sample, so the result does not depend on the chunk length.
    """
    if not gain_db:
        return sound
    given_back = amplify(sound, -gain_db)
    return given_back if gain_db > 0 else bent(given_back)


def bent(waveform: np.ndarray) -> np.ndarray:
    """Compress amplitudes above `KNEE` smoothly, so that they stay below full scale."""
    size = np.abs(waveform)
    above = KNEE + (1.0 - KNEE) * np.tanh((size - KNEE) / (1.0 - KNEE))
    return np.where(size > KNEE, np.sign(waveform) * above, waveform).astype(np.float32)
