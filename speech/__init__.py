"""Text in, mel frames out: espeak-ng's phonemes, then small networks on NumPy."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from speech.frame_density import no_pause
from speech.phonemes import EspeakError, TextError, TooLongError, characters_at, text_parts
from speech.voice import Voice, load_voice, shipped

__all__ = ["EspeakError", "TextError", "TooLongError", "load_voice", "shipped", "text_frames"]


class ReadsFrames(Protocol):
    """A model or a bundle with the content of its model.json."""

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
    """Return the frames of a text for a model to speak, float32 [frames, bands].

    Frames that a voice draws from a density have the detail of recordings, so students refine
    their sound just as they do for a recording's frames.

    Args:
      model: the model that will speak them; its mel frames must be those of the voice.
      text: US English of any length; a long text is read in the parts of `text_parts`.
      speed: factor by which the speech is faster than the recordings, 0.25 to 4.
      voice: the voice; None: the shipped one for the model's frames.
      max_frames: largest number of frames of the whole text; a longer text is refused before any
        frame is made. None: any number.
      pause: called between two pieces of the work, about 30 ms apart; what it raises ends the work.

    Raises:
      TextError: the text cannot be spoken; the caller's input is wrong.
      TooLongError: the text would have more than `max_frames` frames.
      EspeakError: espeak-ng is missing or failed; the installation is wrong.
      UserError: the model reads frames of a different kind.
    """
    voice = shipped(model.spec) if voice is None else voice
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
    frames = np.concatenate([voice.spoken(reading, pause) for reading in readings])
    return _detailed(frames) if voice.draws else frames


def _detailed(frames: np.ndarray) -> np.ndarray:
    # Imported here, so that the front end itself needs only NumPy.
    from wavenet.data.recorded_level import recorded_frames

    return recorded_frames(frames, 0.0)
