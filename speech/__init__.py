"""Text in, mel frames out: espeak-ng's phonemes, then small networks on NumPy."""

from typing import Any, Protocol

import numpy as np

from speech.phonemes import EspeakError, TextError
from speech.voice import Voice, load, shipped

__all__ = ["EspeakError", "TextError", "load", "shipped", "text_frames"]


class ReadsFrames(Protocol):
    """A model or a bundle: what its model.json says."""

    @property
    def spec(self) -> dict[str, Any]:
        """The content of model.json."""


def text_frames(
    model: ReadsFrames, text: str, *, speed: float = 1.0, voice: Voice | None = None
) -> np.ndarray:
    """The frames of a text for a model to speak, float32 [frames, bands].

    Args:
      model: that will speak them; its mel frames must be those of the voice.
      text: US English. speed: how much faster than the recordings, 0.25 to 4.
      voice: which; None: the shipped one.

    Raises:
      TextError: the text cannot be spoken: what is sent is wrong.
      EspeakError: espeak-ng is missing or failed: what is installed is wrong.
      UserError: the model reads other frames.
    """
    voice = shipped() if voice is None else voice
    voice.check(model.spec)
    return voice.frames(text, speed)
