"""The residual's kurtosis tells pulses from noise, and from a smear of the same spectrum."""

import math

import numpy as np
import pytest
import scipy.signal

from wavenet.data import audio
from wavenet.measures import residual_kurtosis

RATE_HZ, HOP = 16_000, 200
VOICED = np.full(80, 125.0)
# Two resonances, as of a vowel.
POLES = [0.97 * np.exp(2j * np.pi * hz / RATE_HZ) for hz in (700.0, 1800.0)]
VOWEL = np.poly([*POLES, *np.conj(POLES)]).real


def kurtosis(sound, f0_hz=VOICED, rate_hz=RATE_HZ, hop=HOP):
    return residual_kurtosis(sound.astype(np.float32), f0_hz, rate_hz, hop)


def noise(seed=0, samples=RATE_HZ):
    return 0.1 * np.random.default_rng(seed).standard_normal(samples)


def pulses(period, samples=RATE_HZ):
    return 0.5 * (np.arange(samples) % period == 0)


def voice(period=128, seed=0):
    return scipy.signal.lfilter([0.05], VOWEL, pulses(period) + 0.01 * noise(seed))


def with_random_phases(sound, seed=0):
    """The magnitudes of the whole sound's spectrum, with other phases."""
    spectrum = np.fft.rfft(sound)
    cycles = np.random.default_rng(seed).random(len(spectrum))
    return np.fft.irfft(np.abs(spectrum) * np.exp(2j * np.pi * cycles), len(sound))


def test_gaussian_noise_has_three_whatever_filter_coloured_it():
    assert kurtosis(noise()) == pytest.approx(3.0, abs=0.1)
    assert kurtosis(scipy.signal.lfilter([1.0], VOWEL, noise())) == pytest.approx(3.0, abs=0.1)


def test_uniform_noise_has_less_and_laplacian_noise_more():
    generator = np.random.default_rng(3)
    assert 1.8 < kurtosis(generator.uniform(-0.1, 0.1, RATE_HZ)) < 2.1
    assert 4.5 < kurtosis(generator.laplace(0.0, 0.05, RATE_HZ)) < 6.5


def test_a_train_of_impulses_has_about_its_period():
    for period in (64, 128):
        # One sample of `period` is large: (1 / p) / (1 / p)^2 = p.
        assert kurtosis(pulses(period) + 1e-4 * noise()) == pytest.approx(period, rel=0.25)


def test_the_vocal_tract_is_taken_off_a_voice_before_it_is_judged():
    assert kurtosis(voice()) > 20.0


def test_random_phases_smear_the_pulses_of_a_voice():
    smeared = with_random_phases(voice())
    assert kurtosis(smeared) < 0.3 * kurtosis(voice())


def test_the_level_does_not_matter():
    assert kurtosis(0.01 * voice()) == pytest.approx(kurtosis(voice()), rel=1e-3)


def test_only_voiced_frames_are_looked_at():
    half = np.where(np.arange(RATE_HZ) < RATE_HZ // 2, noise(), pulses(128) + 1e-4 * noise())
    first, second = np.zeros(80), np.zeros(80)
    first[5:35], second[45:75] = 120.0, 120.0
    assert kurtosis(half, first) == pytest.approx(3.0, abs=0.2)
    assert kurtosis(half, second) > 50.0


def test_the_same_sound_at_another_rate_has_the_same_kurtosis():
    laplacian = np.random.default_rng(3).laplace(0.0, 0.05, RATE_HZ)
    sound = scipy.signal.lfilter([1.0], VOWEL, laplacian) / 20.0
    faster = audio.resample(sound.astype(np.float32), RATE_HZ, 24_000)
    assert kurtosis(faster, rate_hz=24_000, hop=300) == pytest.approx(kurtosis(sound), rel=0.15)


@pytest.mark.parametrize(
    ("sound", "f0_hz"),
    [
        (noise(), np.zeros(80)),  # nothing voiced
        (np.zeros(RATE_HZ), VOICED),  # nothing but silence
        (noise(samples=300), VOICED[:2]),  # no window within the sound
    ],
)
def test_nothing_to_measure_is_not_a_number(sound, f0_hz):
    assert math.isnan(kurtosis(sound, f0_hz))
