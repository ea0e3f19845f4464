"""Frames of a text are made in pieces that can be ended, and a long text is refused before them."""

import types

import numpy as np
import pytest

from onepass import speech
from onepass.speech import voice
from onepass.speech.frame_density import PIECE_FRAMES
from onepass.speech.phonemes import STOP, Phoneme, characters_at
from onepass.speech.voice import MAX_FRAMES, MAX_PHONEME_FRAMES

NAMES = ("a", "t", "I", "n")


@pytest.fixture
def own(monkeypatch):
    """The shipped voice, which reads every character as a phoneme without espeak-ng."""

    def spelt(text, marks=None, style=None):
        spoken = [Phoneme(NAMES[n % 4], n % 3, n % 5 == 0) for n in range(len(text))]
        return (Phoneme("^"), *spoken, Phoneme(STOP))

    monkeypatch.setattr(voice, "phonemes", spelt)
    return speech.shipped_voice()


def text_frames(own, text, **more):
    model = types.SimpleNamespace(spec={"features": {"mel": own.spec["mel"]}})
    return speech.text_frames(model, text, voice=own, **more)


class GoneError(Exception):
    """Nobody waits any more."""


def test_pieces_are_short_and_the_frames_are_those_of_the_whole(own):
    pauses = []
    frames = text_frames(own, "x" * 120, pause=lambda: pauses.append(1))
    np.testing.assert_array_equal(frames, text_frames(own, "x" * 120))
    np.testing.assert_array_equal(frames, own.frames("x" * 120))
    assert len(pauses) >= len(frames) / PIECE_FRAMES > 2


@pytest.mark.parametrize("after", range(6))
def test_a_text_ends_at_any_pause(own, after):
    pauses = []

    def pause():
        pauses.append(1)
        if len(pauses) > after:
            raise GoneError

    with pytest.raises(GoneError):
        text_frames(own, "x" * 200, pause=pause)
    assert len(pauses) == after + 1


def test_a_text_of_too_many_frames_is_refused_before_the_first_is_made(own, monkeypatch):
    most = len(text_frames(own, "x" * 50))
    assert len(text_frames(own, "x" * 50, max_frames=most)) == most
    monkeypatch.setattr(voice.Voice, "pitch", lambda *_: pytest.fail("work was done"))
    for speed, limit in ((1.0, most - 1), (0.25, most)):
        with pytest.raises(speech.TooLongError, match="s at most, got"):
            text_frames(own, "x" * 50, speed=speed, max_frames=limit)
    monkeypatch.setattr(voice, "MAX_FRAMES", most - 1)
    with pytest.raises(speech.TooLongError):
        own.frames("x" * 50)


@pytest.mark.parametrize("speed", [0.25, 0.3, 0.5, 0.7, 1.0, 4.0])
def test_no_speed_makes_a_longer_sound_than_speed_1(speed):
    """The rule of lengths, and the most frames that a character may have by it."""
    for most in (1000, 4096):
        assert 0 <= most - characters_at(speed, most) / min(1.0, speed) + 1e-6 < 1 / speed + 1
    assert characters_at(0.25, 1) == 1  # at least one
    assert MAX_FRAMES < 1000 * MAX_PHONEME_FRAMES  # so that the durations are checked as well
