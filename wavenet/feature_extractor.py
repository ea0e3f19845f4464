"""The frames that a model of speech computes from a recording, and the speakers that it knows."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from foundation.errors import UserError
from wavenet.data import audio
from wavenet.data.recorded_level import (
    RecordedFrames,
    gain_of_levels_db,
    level_gain_db,
    recorded_frames,
)
from wavenet.data.recording_in_pieces import RecordingInPieces
from wavenet.features.frames_in_pieces import FramesInPieces
from wavenet.features.mel import above_silence, mel_pieces, mel_spectrogram, num_frames
from wavenet.features.pitch import fundamental_frequency, log_f0_features


class FeatureExtraction:
    """A mixin for models of speech: frames by the model's own conventions, and speakers by name.

    The model must have `data` (the data settings of its training), `hop_samples`, `gain_db`,
    `level_db` and `known_speakers`.
    """

    @property
    def sample_rate_hz(self: Any) -> int:
        """Sample rate of its sounds."""
        return self.data.sample_rate_hz

    def frames(self: Any, waveform: np.ndarray) -> RecordedFrames:
        """Return the conditioning frames of a recording, brought to the model's own level.

        The frames keep the recording's gain (`frames.gain_db`, in dB), so that `generate(frames)`
        returns a sound at the recording's level, with peaks compressed to stay below full scale.
        From `np.asarray(frames)` it returns one at the model's level.

        Args:
          waveform: float32 [samples] at `sample_rate_hz`, at its stored level.

        Returns:
          float32 [frames, channels].
        """
        gain_db = self.level_gain_db(waveform)
        frames = self.frames_at_level(audio.amplify(waveform, gain_db))
        return recorded_frames(frames, gain_db)

    def level_gain_db(self: Any, waveform: np.ndarray) -> float:
        """Return the gain, in dB, that brings a recording to the model's level."""
        return level_gain_db(waveform, self.gain_db, self.level_db)

    def frames_at_level(self: Any, waveform: np.ndarray) -> np.ndarray:
        """Return the frames of a waveform that has the model's own level already."""
        mel, pitch = self.data.mel(self.hop_samples), self.data.pitch(self.hop_samples)
        columns = []
        if mel is not None:
            columns.append(above_silence(mel_spectrogram(waveform, mel), mel))
        if pitch is not None:
            f0_hz, voiced = fundamental_frequency(waveform, pitch)
            columns.append(log_f0_features(f0_hz, voiced, pitch.reference_hz))
        return np.concatenate(columns, axis=1)

    def frames_in_pieces(self: Any, recording: RecordingInPieces) -> FramesInPieces:
        """Return the frames that `frames_at_level` gives for the recording at the model's level.

        The model must read only mel frames. Only a few of them are in memory at a time.
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
        """Return `level_gain_db` of a recording in pieces."""
        levels = (recording.rms_db, recording.peak_db)
        return gain_of_levels_db(*levels, self.gain_db, self.level_db)

    def speaker_number(self: Any, name: str | None) -> int | None:
        """Return the number of a speaker (None: the first), or None for a model without speakers.

        Raises:
          UserError: the model does not know the name.
        """
        known = self.known_speakers
        if not known:
            if name is not None:
                raise UserError(f"This model knows no speakers, got {name!r}.")
            return None
        if name is not None and name not in known:
            raise UserError(f"There is no speaker {name!r}; there are {', '.join(known)}.")
        return 0 if name is None else known.index(name)
