"""The sound that Griffin and Lim find in mel frames."""

import dataclasses

import numpy as np
import pytest

from wavenet.features.conventions import MelConvention
from wavenet.features.frames import (
    griffin_lim,
    magnitudes_of_mel,
    mel_filters,
    mel_spectrogram,
)
from wavenet.measures import log_mel_distance_db, multi_resolution_stft_distance

MEL = MelConvention(16_000, hop_samples=200)
SMALL = MelConvention(16_000, 100, 400, 512, bands=30)


def vowels(samples=12_000, seed=0):
    """A voice of 140 to 180 Hz that swells twice, over a little noise."""
    time = np.arange(samples) / 16_000
    phase = 2.0 * np.pi * np.cumsum(160.0 + 20.0 * np.sin(2.0 * np.pi * time)) / 16_000
    voice = sum(np.sin(k * phase) / k**1.5 for k in range(1, 30))
    hiss = np.random.default_rng(seed).normal(0.0, 0.002, samples)
    return (0.1 * voice * np.sin(np.pi * 3.0 * time) ** 2 + hiss).astype(np.float32)


@pytest.fixture(scope="module")
def recorded():
    return vowels()


@pytest.fixture(scope="module")
def sound(recorded):
    return griffin_lim(mel_spectrogram(recorded, MEL), MEL, len(recorded))


def bands_of(magnitudes, convention):
    return np.log(np.maximum(magnitudes @ mel_filters(convention), convention.floor))


def test_the_magnitudes_have_the_bands_of_the_mel(recorded):
    mel = mel_spectrogram(recorded, MEL)
    magnitudes = magnitudes_of_mel(mel, MEL)
    assert magnitudes.min() >= 0.0
    assert np.sqrt(np.mean((bands_of(magnitudes, MEL) - mel) ** 2)) < 0.02  # 0.17 dB


def test_iterations_beat_random_phases(sound, recorded):
    mel = mel_spectrogram(recorded, MEL)
    random, ten = (griffin_lim(mel, MEL, len(recorded), n) for n in (0, 10))
    mels = [log_mel_distance_db(x, recorded, MEL) for x in (random, ten, sound)]
    stfts = [multi_resolution_stft_distance(x, recorded) for x in (random, ten, sound)]
    assert mels[0] > 2.0 * mels[1] > 2.0 * mels[2]
    assert stfts[0] > stfts[1] > stfts[2]


def test_refitting_comes_closer_to_the_mel(sound, recorded):
    refitted = griffin_lim(mel_spectrogram(recorded, MEL), MEL, len(recorded), refit=True)
    distances = [log_mel_distance_db(x, recorded, MEL) for x in (refitted, sound)]
    assert distances[0] < 0.8 * distances[1]


def test_a_seed_is_one_sound_and_another_seed_another():
    recorded = vowels(3000)
    mel = mel_spectrogram(recorded, SMALL)
    one, again, other = (griffin_lim(mel, SMALL, 3000, 5, seed) for seed in (7, 7, 8))
    np.testing.assert_array_equal(one, again)
    assert np.max(np.abs(one - other)) > 0.01


def test_twice_the_bands_are_twice_the_sound():
    mel = mel_spectrogram(np.random.default_rng(0).normal(0, 0.1, 3000), SMALL)
    one, two = (griffin_lim(m, SMALL, 3000, 5) for m in (mel, mel + np.log(2.0)))
    np.testing.assert_allclose(two, 2.0 * one, atol=1e-3 * np.abs(one).max())


@pytest.mark.parametrize(
    "convention",
    [
        SMALL,
        dataclasses.replace(SMALL, padding="reflect", log="log10", normalisation="peak"),
        dataclasses.replace(SMALL, scale="htk", low_hz=60.0, high_hz=7000.0, fft_size=1024),
        dataclasses.replace(SMALL, hop_samples=128, window_samples=401),
        dataclasses.replace(SMALL, hop_samples=400),
    ],
)
def test_every_convention_is_followed_to_the_last_sample(convention):
    recorded = vowels(4000)
    for samples in (3999, 4000):
        mel = mel_spectrogram(recorded[:samples], convention)
        sound = griffin_lim(mel, convention, samples)
        assert (sound.shape, sound.dtype) == ((samples,), np.float32)
        assert log_mel_distance_db(sound, recorded[:samples], convention) < 2.5


@pytest.mark.parametrize("samples", [1, 37, 200])
def test_one_frame_is_enough(samples):
    recorded = vowels()[2000 : 2000 + samples]
    sound = griffin_lim(mel_spectrogram(recorded, MEL), MEL, samples)
    assert sound.shape == (samples,)
    assert np.all(np.isfinite(sound))
    assert log_mel_distance_db(sound, recorded, MEL) < 6.0


def test_silence_stays_silent():
    silence = np.full([20, MEL.bands], MEL.silence, np.float32)
    np.testing.assert_array_equal(griffin_lim(silence, MEL, 4000), np.zeros(4000, np.float32))


def test_silence_between_two_sounds_stays_silent():
    recorded = np.concatenate([vowels(2000), np.zeros(4000), vowels(2000)]).astype(np.float32)
    sound = griffin_lim(mel_spectrogram(recorded, SMALL), SMALL, len(recorded))
    assert np.abs(sound[2500:5500]).max() < 1e-6 < np.abs(sound[:2000]).max()


@pytest.mark.parametrize(
    ("mel", "samples", "iterations", "message"),
    [
        (np.zeros((3, 29)), 300, 60, r"`mel_frames` must have the shape \[frames, 30\], got \(3"),
        (np.zeros((0, 30)), 300, 60, r"`mel_frames` must have the shape \[frames, 30\], got \(0"),
        (np.full((3, 30), np.nan), 300, 60, "`mel_frames` must be finite"),
        (np.zeros((3, 30)), 200, 60, "`num_samples` must be above 200 and at most 300 for 3"),
        (np.zeros((3, 30)), 301, 60, "`num_samples` must be above 200 and at most 300 for 3"),
        (np.zeros((1, 30)), 0, 60, "`num_samples` must be above 0 and at most 100"),
        (np.zeros((3, 30)), 300, -1, "`iterations` must be at least 0, got -1"),
    ],
)
def test_what_is_no_mel_of_so_many_samples_is_refused(mel, samples, iterations, message):
    with pytest.raises(ValueError, match=message):
        griffin_lim(mel, SMALL, samples, iterations)
