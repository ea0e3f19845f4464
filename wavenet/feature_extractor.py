"""Extraction of conditioning frames by a speech model, and lookup of its speakers."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from onepass.foundation.errors import UserError
from wavenet.data import audio
from wavenet.data.recorded_level import (
    RecordedFrames,
    gain_of_levels_db,
    level_gain_db,
    recorded_frames,
)
from wavenet.data.recording_in_pieces import RecordingInPieces
from wavenet.data.sound_properties import without_offset
from wavenet.features.frames_in_pieces import FramesInPieces
from wavenet.features.mel import above_silence, mel_pieces, mel_spectrogram, num_frames
from wavenet.features.pitch import fundamental_frequency, log_f0_features


class FeatureExtraction:
    """A mixin for speech models that extracts their conditioning frames and looks up speakers.

    The model must have the attributes `data` (a `DataConfig`), `hop_samples`, `gain_db`,
    `level_db` and `known_speakers`.
    """

    @property
    def sample_rate_hz(self: Any) -> int:
        """Sample rate of the model's audio in Hz."""
        return self.data.sample_rate_hz

    def frames(self: Any, waveform: np.ndarray) -> RecordedFrames:
        """Return the conditioning frames of a recording, after bringing it to the model's level.

        A constant offset is taken out first.

        The frames keep the applied gain (`frames.gain_db`, in dB), so `sample(condition=frames)`
        returns a sound at the recording's level; its peaks are compressed to stay below full scale
        if the recording was attenuated. With `np.asarray(frames)` it has the model's level.

        Args:
          waveform: float32 [samples] at `sample_rate_hz`, at its stored level.

        Returns:
          float32 [frames, channels].

        Raises:
          ValueError: the waveform is empty, or is not one-dimensional, floating and finite.
        """
        waveform = without_offset(audio.checked_waveform(waveform))
        gain_db = self.level_gain_db(waveform)
        frames = self.frames_at_level(audio.amplify(waveform, gain_db))
        return recorded_frames(frames, gain_db)

    def level_gain_db(self: Any, waveform: np.ndarray) -> float:
        """Return the gain, in dB, that brings a recording to the model's level."""
        return level_gain_db(waveform, self.gain_db, self.level_db)

    def frames_at_level(self: Any, waveform: np.ndarray) -> np.ndarray:
        """Return the frames of a waveform that is already at the model's level."""
        waveform = audio.checked_waveform(waveform)
        mel, pitch = self.data.mel(self.hop_samples), self.data.pitch(self.hop_samples)
        columns = []
        if mel is not None:
            columns.append(above_silence(mel_spectrogram(waveform, mel), mel))
        if pitch is not None:
            f0_hz, voiced = fundamental_frequency(waveform, pitch)
            columns.append(log_f0_features(f0_hz, voiced, pitch.reference_hz))
        return np.concatenate(columns, axis=1)

    def frames_in_pieces(self: Any, recording: RecordingInPieces) -> FramesInPieces:
        """Return the frames of a long recording, with only a few in memory at a time.

        They equal the result of `frames_at_level` for the recording at the model's level; waveforms
        generated from them have the model's level, too. The model must read only mel frames.
        """
        mel = self.data.mel(self.hop_samples)
        gain_db = self.level_gain_of(recording)

        def pieces() -> Iterator[np.ndarray]:
            blocks = (audio.amplify(block, gain_db) for block in recording.blocks())
            for piece in mel_pieces(blocks, recording.samples, mel):
                yield above_silence(piece, mel)

        shape = (num_frames(recording.samples, mel.hop_samples), mel.bands)
        return FramesInPieces(shape, pieces, 0.0)

    def level_gain_of(self: Any, recording: RecordingInPieces) -> float:
        """Return the gain, in dB, that brings a recording in pieces to the model's level."""
        return gain_of_levels_db(recording.rms_db, recording.peak_db, self.gain_db, self.level_db)

    def speaker_number(self: Any, name: str | None) -> int | None:
        """Return the number of the speaker `name`, by default 0; None if the model has no speakers.

        Raises:
          UserError: the model has no speaker of this name.
        """
        known = self.known_speakers
        if not known:
            if name is not None:
                raise UserError(f"This model knows no speakers, got {name!r}.")
            return None
        if name is not None and name not in known:
            raise UserError(f"There is no speaker {name!r}; there are {', '.join(known)}.")
        return 0 if name is None else known.index(name)
