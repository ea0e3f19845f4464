"""The level of a recording: brought to a model's own for its frames, and given back to the sound.

A model hears recordings at one level, that of its training. What it says is at that level too;
divided by what the recording was amplified by, it is as loud as the recording.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from wavenet.data.audio import amplify, peak_db, rms_db

HEADROOM_DB = 0.3  # of a peak below full scale: what resampling may add to it
NEAR_DB = 6.0  # about what recordings of one training differ by from their median
SILENCE_DB = -80.0  # RMS below which there is no voice to be brought to a level
KNEE = 0.95  # of full scale, above which peaks are bent


class RecordedFrames(np.ndarray):
    """Frames, float32 [frames, channels], of a recording; `gain_db` is what it was amplified by.

    A sound that a model generates from them is at the recording's level. `np.asarray` of them is
    plain frames, of which the sound is at the model's.
    """

    gain_db = 0.0

    def __array_finalize__(self, origin: Any) -> None:
        """Keeps the gain in a slice."""
        self.gain_db = getattr(origin, "gain_db", 0.0)


def recorded_frames(frames: np.ndarray, gain_db: float) -> RecordedFrames:
    """The frames of a recording that was amplified by so many dB."""
    made = np.asarray(frames, np.float32).view(RecordedFrames)
    made.gain_db = float(gain_db)
    return made


def gain_of(condition: Any) -> float:
    """What the recording of some frames was amplified by, in dB; 0 for any other frames."""
    return getattr(condition, "gain_db", 0.0)


def level_gain_db(waveform: np.ndarray, gain_db: float, level_db: float | None) -> float:
    """What brings a recording to a model's level, in dB.

    It is the gain of the training's recordings where the recording is about as loud as those; else
    what brings its RMS within `NEAR_DB` of theirs. No peak is amplified above full scale.

    Args:
      waveform: float [samples], as stored.
      gain_db: of the model, see `corpus.prepare`.
      level_db: RMS of the recordings that the model was trained on, in dB of full scale, after the
        gain; None where it is not known.
    """
    stored_db = rms_db(waveform)
    if level_db is not None and stored_db > SILENCE_DB:
        near = (level_db - NEAR_DB - stored_db, level_db + NEAR_DB - stored_db)
        gain_db = float(np.clip(gain_db, *near))
    return min(gain_db, below_full_scale_db(peak_db(waveform)))


def below_full_scale_db(peak: float) -> float:
    """The most dB that a peak may be amplified by, of so many dB of full scale; never below 0."""
    return max(0.0, -HEADROOM_DB - peak)


def level_of(spec: Mapping[str, Any]) -> float | None:
    """The `level_db` of `level_gain_db` that a model.json says: measured, or else aimed at."""
    data = spec.get("config", {}).get("data") or {}
    return spec.get("level_db", data.get("level_db"))


def at_recorded_level(sound: np.ndarray, gain_db: float) -> np.ndarray:
    """A model's sound at the level of a recording that was amplified by so many dB.

    Peaks that this would bring beyond full scale are bent to stay below it, sample by sample, so
    that a sound is the same in any chunks.
    """
    if not gain_db:
        return sound
    given_back = amplify(sound, -gain_db)
    return given_back if gain_db > 0 else bent(given_back)


def bent(waveform: np.ndarray) -> np.ndarray:
    """The waveform with all above `KNEE` bent smoothly to stay below full scale."""
    size = np.abs(waveform)
    above = KNEE + (1.0 - KNEE) * np.tanh((size - KNEE) / (1.0 - KNEE))
    return np.where(size > KNEE, np.sign(waveform) * above, waveform).astype(np.float32)
