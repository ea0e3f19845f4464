"""Text to mel frames: phonemes from espeak-ng, then small networks that run on NumPy."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from onepass.speech.frame_density import no_pause
from onepass.speech.phonemes import EspeakError, TextError, TooLongError, characters_at, text_parts
from onepass.speech.voice import Voice, load_voice, shipped_voice

__all__ = ["EspeakError", "TextError", "TooLongError", "load_voice", "shipped_voice", "text_frames"]


class ReadsFrames(Protocol):
    """A model or bundle with a `spec`, the content of its model.json."""

    @property
    def spec(self) -> dict[str, Any]:
        """The content of model.json."""


def text_frames(
    model: ReadsFrames,
    text: str,
    *,
    speed: float = 1.0,
    voice: Voice | None = None,
    max_frames: int | None = None,
    pause: Callable[[], None] = no_pause,
) -> np.ndarray:
    """Return the mel frames of a text, for a model to turn into speech, float32 [frames, bands].

    Frames that are drawn from a voice's density are returned as `RecordedFrames`, because they are
    as detailed as a recording's; distilled students refine the audio of such frames by default.

    Args:
      model: the model that will turn the frames into speech; it must read the voice's frames.
      speed: factor by which the speech is faster than the recordings, 0.25 to 4.
      voice: the voice that speaks; None: the shipped voice for the model's frames.
      max_frames: largest number of frames that the text may have; a longer text is rejected before
        any frame is computed. None: no limit.
      pause: function called between short pieces of the work; an exception that it raises ends
        the work.

    Raises:
      TextError: the text cannot be spoken, or `speed` is out of range.
      TooLongError: the text would have more than `max_frames` frames.
      EspeakError: espeak-ng is not installed or failed.
      UserError: the model does not read the voice's frames.
    """
    voice = shipped_voice(model.spec) if voice is None else voice
    voice.check(model.spec)
    if not isinstance(text, str):
        raise TextError(f"The text must be a string, got {type(text).__name__}.")
    parts = text_parts(text, characters_at(speed)) or [text]
    readings = []
    for part in parts:
        readings.append(voice.reading(part, speed))
        pause()
    if max_frames is not None:
        voice.check_length(sum(len(reading) for reading in readings), max_frames)
    frames = np.concatenate([voice.speak_frames(reading, pause) for reading in readings])
    return _add_recorded_level(frames) if voice.draws else frames


def _add_recorded_level(frames: np.ndarray) -> np.ndarray:
    # Imported here so that the front end needs only NumPy.
    from wavenet.data.recorded_level import recorded_frames

    return recorded_frames(frames, 0.0)
