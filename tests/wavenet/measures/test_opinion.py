"""Predicted opinion scores: what is known of them without listening."""

import math

import numpy as np
import pytest

from wavenet import shipped
from wavenet.data import audio
from wavenet.measures import dnsmos_p808, plcmos

pytest.importorskip("onnxruntime", reason="of the extra `listening`")
pytest.importorskip("speechmos", reason="of the extra `listening`")

RATE_HZ = 16_000
SCORES = pytest.mark.parametrize("score", [dnsmos_p808, plcmos])


@pytest.fixture(scope="module")
def speech():
    path = min(shipped.recordings_folder().glob("dev/*.flac"))
    return audio.read(path, RATE_HZ)


def noise(samples, level):
    return np.random.default_rng(0).normal(0.0, level, samples).astype(np.float32)


@SCORES
def test_speech_is_better_than_noise_and_has_its_score_every_time_and_at_any_rate(score, speech):
    noisy = speech + noise(len(speech), 0.02)
    best, *others = (score(x, RATE_HZ) for x in (speech, noisy, noise(len(speech), 0.1)))
    assert 5.0 > best > max(others) + 0.5 and min(others) > 0.5
    assert score(speech, RATE_HZ) == best
    faster = audio.resample(speech, RATE_HZ, 24_000)
    assert score(faster, 24_000) == pytest.approx(best, abs=0.1)


@SCORES
def test_silence_has_a_finite_score_and_a_tenth_of_a_second_none(score, speech):
    assert math.isfinite(score(np.zeros(RATE_HZ, np.float32), RATE_HZ))
    assert math.isnan(score(speech[:1600], RATE_HZ))


@pytest.mark.parametrize("seconds", [2.0, 9.5, 11.0])
def test_dnsmos_is_the_score_of_its_own_package(speech, seconds):
    pytest.importorskip("librosa")
    pytest.importorskip("requests")
    from speechmos import dnsmos

    sound = np.tile(speech, 8)[: round(seconds * RATE_HZ)]
    expected = dnsmos.run(sound, RATE_HZ)["p808_mos"]
    assert dnsmos_p808(sound, RATE_HZ) == pytest.approx(expected, abs=1e-4)


def test_plcmos_is_the_score_of_its_own_package_but_for_its_raters(speech):
    from speechmos import plcmos as package

    scores = [package.run(speech, RATE_HZ)["plcmos"] for _ in range(3)]
    assert plcmos(speech, RATE_HZ) == pytest.approx(np.mean(scores), abs=0.2)
