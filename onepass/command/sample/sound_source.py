"""The input of a local sound model: frames, and the recording that they are computed from."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np

from onepass.command.sample.sound_files import PLOTTED_SECONDS, say_markup
from onepass.foundation.atomic_files import read_npy
from onepass.foundation.errors import UserError
from wavenet.data import audio
from wavenet.data.recorded_level import recorded_frames
from wavenet.data.recording_in_pieces import RecordingInPieces, check_length
from wavenet.data.sound_properties import SoundProperties
from wavenet.features.frame_statistics import unlike
from wavenet.features.frames_in_pieces import FramesInPieces
from wavenet.features.mel import above_silence


@dataclasses.dataclass(frozen=True)
class Source:
    """The input of a synthesis; missing attributes are None.

    Attributes:
      recording: float32 [samples] at the model's sample rate and the original level; only the
        beginning if `frames` are in pieces.
      gain_db: gain in dB that brings the recording to the model's level.
      frames: the frames [frames, channels] at the model's level.
      samples: number of samples of the whole recording.
    """

    recording: np.ndarray | None = None
    gain_db: float = 0.0
    frames: np.ndarray | FramesInPieces | None = None
    samples: int | None = None


def source_of(given: Any, model: Any, path: Path | None) -> Source:
    """Return the input of a synthesis; print notes about the recording or text on stderr."""
    if given.text is not None:
        say_markup(given.text)
        from onepass.speech import text_frames

        return Source(frames=text_frames(model, given.text, speed=given.speed))
    if given.mel:
        return Source(frames=_mel_frames(given.mel, model, given.force))
    return Source() if path is None else _of_recording(given, model, path)


def _of_recording(given: Any, model: Any, path: Path) -> Source:
    front = model.front
    rate_hz = front.sample_rate_hz
    if model.model.takes_pieces and front.data.features == ("mel",):
        pieces = RecordingInPieces(path, rate_hz)
        _say_notes(given, path, pieces.file, rate_hz)
        frames = front.frames_in_pieces(pieces)
        beginning = pieces.beginning(int(PLOTTED_SECONDS * rate_hz))
        return Source(beginning, front.level_gain_of(pieces), frames, pieces.samples)
    sound = audio.read_sound(path)
    _say_notes(given, path, sound, rate_hz)
    recording = audio.resample(sound.waveform, sound.sample_rate_hz, rate_hz)
    check_length(path, len(recording))
    whole = recorded_frames(front.frames(recording), 0.0) if front.conditional else None
    return Source(recording, front.level_gain_db(recording), whole, len(recording))


def _say_notes(given: Any, path: Path, file: SoundProperties, rate_hz: int) -> None:
    """Print notes about a recording on stderr; about resampling only if the user chose the file."""
    for note in file.notes(rate_hz if given.recording else None):
        print(f"{path}: {note}", file=sys.stderr)


def _mel_frames(path: Path, model: Any, force: bool) -> np.ndarray:
    """Read mel frames, float32 [frames, bands], and check them for the model unless `force`."""
    mel = _stored_mel(path, model.front.data.mel_bands)
    convention, trained = model.front.mel, model.front.statistics
    frames = above_silence(mel, convention)
    if trained is not None and not force:
        why = unlike(frames, trained, convention)
        if why:
            raise UserError(f"{path} is of another convention: {why}. --force takes it anyway.")
    return frames


def _stored_mel(path: Path, bands: int) -> np.ndarray:
    """Read log-mel frames from an npy file, float32 [frames, bands].

    HiFi-GAN's layouts, [bands, frames] and [1, bands, frames], are accepted, too.
    """
    mel = read_npy(path)
    shape = mel.shape
    is_batch = len(shape) == 3 and shape[0] == 1
    if is_batch:
        mel = mel[0]
    if mel.ndim == 2 and mel.shape[0] == bands and (is_batch or mel.shape[1] != bands):
        mel = mel.T
    elif mel.shape == (bands, bands):
        print(
            f"{path}: {bands} x {bands} numbers are taken as [frames, bands]; pass [1, {bands}, "
            f"{bands}] if they are [bands, frames]",
            file=sys.stderr,
        )
    if mel.ndim != 2 or mel.shape[1] != bands or mel.dtype.kind not in "fiu":
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
