"""Text to mel frames: phonemes from espeak-ng, then small networks that run on NumPy."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from onepass.speech.frame_density import no_pause
from onepass.speech.markup import (
    Ssml,
    ipa_phonemes,
    is_ssml,
    mark_words,
    note_on_markup,
    read_pronunciations,
    without_marks,
)
from onepass.speech.phonemes import (
    PLAIN,
    EspeakError,
    Mark,
    TextError,
    TooLongError,
    characters_at,
    text_parts,
)
from onepass.speech.times import TimedWord, time_words, write_times
from onepass.speech.voice import Reading, Voice, load_voice, shipped_voice

__all__ = [
    "EspeakError",
    "TextError",
    "TooLongError",
    "load_voice",
    "read_pronunciations",
    "shipped_voice",
    "text_frames",
    "text_times",
    "write_times",
]


class ReadsFrames(Protocol):
    """A model or bundle with a `spec`, the content of its model.json."""

    @property
    def spec(self) -> dict[str, Any]:
        """The content of model.json."""


def text_frames(
    model: ReadsFrames,
    text: str | None = None,
    *,
    phonemes: str | None = None,
    pronunciations: Mapping[str, str] | None = None,
    speed: float = 1.0,
    voice: Voice | None = None,
    max_frames: int | None = None,
    pause: Callable[[], None] = no_pause,
    note: Callable[[str], None] | None = warnings.warn,
) -> np.ndarray:
    """Return the mel frames of a text, for a model to turn into speech, float32 [frames, bands].

    Frames that are drawn from a voice's density are returned as `RecordedFrames`, because they are
    as detailed as a recording's; distilled students refine the audio of such frames by default.

    Args:
      model: the model that will turn the frames into speech; it must read the voice's frames.
      text: US English of any length; `text_parts` splits a long text. It may be SSML in <speak>,
        whose <break>, <emphasis> and <prosody rate> are obeyed.
      phonemes: IPA as espeak-ng writes it for en-us, of any length, in place of `text`; it needs no
        espeak-ng.
      pronunciations: IPA of words of the text, by word, as `read_pronunciations` returns.
      speed: factor by which the speech is faster than the recordings, 0.25 to 4.
      voice: the voice that speaks; None: the shipped voice for the model's frames.
      max_frames: largest number of frames that the text may have; a longer text is rejected before
        any frame is computed. None: no limit.
      pause: function called between short pieces of the work; an exception that it raises ends
        the work.
      note: function called with the note of `note_on_markup` if the text has tags that are not
        obeyed, by default a warning; None: say nothing.

    Raises:
      TextError: the text, phonemes or pronunciations cannot be spoken, or `speed` is out of range.
      TooLongError: the text would have more than `max_frames` frames.
      EspeakError: espeak-ng is not installed or failed.
      UserError: the model does not read the voice's frames.
    """
    voice = shipped_voice(model.spec) if voice is None else voice
    voice.check(model.spec)
    if note is not None and isinstance(text, str) and (words := note_on_markup(text)):
        note(words)
    readings = []
    for reading in _readings(voice, text, phonemes, pronunciations or {}, speed):
        readings.append(reading)
        pause()
    if max_frames is not None:
        voice.check_length(sum(len(reading) for reading in readings), max_frames)
    frames = np.concatenate([voice.speak_frames(reading, pause) for reading in readings])
    if not voice.draws:
        return frames
    from wavenet.data.audio import recorded_frames  # others need only NumPy

    return recorded_frames(frames, 0.0)


def text_times(
    model: ReadsFrames,
    text: str | None = None,
    *,
    phonemes: str | None = None,
    pronunciations: Mapping[str, str] | None = None,
    speed: float = 1.0,
    voice: Voice | None = None,
) -> list[TimedWord]:
    """Return when the words and phonemes of a text are spoken, if `text_frames` speaks it.

    For the arguments and errors see `text_frames`.
    """
    voice = shipped_voice(model.spec) if voice is None else voice
    readings = list(_readings(voice, text, phonemes, pronunciations or {}, speed))
    return time_words(readings, voice.hop_seconds)


def _readings(
    voice: Voice,
    text: str | None,
    phonemes: str | None,
    pronunciations: Mapping[str, str],
    speed: float,
) -> Iterator[Reading]:
    """Yield the readings of the parts of a text or of phonemes."""
    if (text is None) == (phonemes is None):
        raise TextError("One of `text` and `phonemes` must be given, and not both.")
    given = text if phonemes is None else phonemes
    if not isinstance(given, str):
        raise TextError(f"The text must be a string, got {type(given).__name__}.")
    if phonemes is not None:
        if pronunciations:
            raise TextError(
                "`pronunciations` must not be given with `phonemes`: there are no words."
            )
        for part in text_parts(phonemes, characters_at(speed)) or [phonemes]:
            yield voice.reading_of(ipa_phonemes(part), speed)
        return
    marks: dict[str, Mark] = {}
    words, style = without_marks(given), PLAIN
    if is_ssml(words):
        words = Ssml(words, marks).text
    words = mark_words(words, pronunciations, marks)
    most = characters_at(speed / max((mark.stretch or 1.0 for mark in marks.values()), default=1.0))
    for part in text_parts(words, most) or [words]:
        yield voice.reading(part, speed, marks, style)
        styles = [marks[c] for c in part if c in marks and marks[c].stretch is not None]
        style = styles[-1] if styles else style
