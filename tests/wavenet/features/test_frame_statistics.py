"""Frames of another convention are distinguished from those that a model was trained on."""

import dataclasses

import numpy as np
import pytest

from wavenet.data import audio
from wavenet.features.conventions import MelConvention
from wavenet.features.frames import (
    FrameStatistics,
    above_silence,
    mel_spectrogram,
    read_statistics,
    unlike,
)
from wavenet.shipped import recordings_folder

MEL = MelConvention(16_000, 200)


@pytest.fixture(scope="module")
def speech():
    """Two seconds of a shipped recording."""
    path = sorted(recordings_folder().glob("dev/*.flac"))[0]
    return audio.read(path, MEL.sample_rate_hz)[:32_000]


@pytest.fixture(scope="module")
def trained():
    """Return the statistics of other recordings, 4.64 dB louder."""
    paths = sorted(recordings_folder().glob("train/*.flac"))[:3]
    sounds = [audio.amplify(audio.read(path, MEL.sample_rate_hz), 4.64) for path in paths]
    return FrameStatistics.of(frames(sound) for sound in sounds)


def frames(waveform):
    return above_silence(mel_spectrogram(waveform, MEL), MEL)


@pytest.mark.parametrize("change_db", [-60, -20, 0, 10])
def test_speech_at_any_level_and_silence_are_the_models(speech, trained, change_db):
    assert unlike(frames(audio.amplify(speech, change_db)), trained, MEL) is None
    assert unlike(frames(np.zeros(16_000, np.float32)), trained, MEL) is None


def test_every_part_of_speech_is_the_models(speech, trained):
    whole = frames(audio.amplify(speech, 4.64))
    assert all(unlike(whole[n : n + 25], trained, MEL) is None for n in range(0, 130, 10))


CONVENTIONS = {
    "linear magnitudes": np.exp,
    "logarithms to base 10": lambda mel: mel / np.log(10.0),
    "decibels": lambda mel: 20.0 * mel / np.log(10.0),
    "of power": lambda mel: 2.0 * mel,
    "between 0 and 1": lambda mel: above_silence(mel, MEL),
    "triangles of height one": lambda mel: mel + 4.5,
}


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_another_convention_is_recognised(speech, trained, convention):
    mel = CONVENTIONS[convention](mel_spectrogram(speech, MEL))
    why = unlike(above_silence(mel, MEL), trained, MEL)
    assert why.endswith(
        "natural logarithms of magnitudes, at least 1e-05, 80 bands of scale slaney, normalised "
        "by area, 16000 Hz"
    )


def test_natural_logarithms_are_distinguished_from_logarithms_to_base_10(speech):
    tens = MelConvention(16_000, 200, log="log10")
    known = FrameStatistics.of([above_silence(mel_spectrogram(speech, tens), tens)])
    natural = above_silence(mel_spectrogram(speech, MEL), tens)
    assert "log10 logarithms" in unlike(natural, known, tens)


def test_statistics_of_recordings_are_those_of_all_their_frames(speech):
    parts = [frames(part) for part in (speech[:7000], speech[7000:])]
    whole = np.concatenate(parts).astype(np.float64)
    known = FrameStatistics.of(iter(parts))
    found = (known.high, known.mean, known.deviation)
    np.testing.assert_allclose(found, (whole.max(), whole.mean(), whole.std()), atol=6e-5)


def test_a_model_json_says_what_it_says_or_nothing():
    known = FrameStatistics(1.1, 0.54, 0.16)
    assert read_statistics({"frames": dataclasses.asdict(known)}) == known
    for broken in ({}, {"frames": None}, {"frames": {"mean": 1}}, {"frames": {"mean": "x"}}):
        assert read_statistics(broken) is None
    assert read_statistics({"frames": {"high": 1, "mean": 0, "deviation": 0}}) is None
