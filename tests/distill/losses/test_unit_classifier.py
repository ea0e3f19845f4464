"""Speech units of a language of five sounds."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from distill.losses import perceptual
from distill.losses.perceptual import UnitClassifier, UnitConfig
from onepass.foundation.errors import UserError
from onepass.foundation.files import read_npz, write_npz
from wavenet.data.audio import from_int16, to_int16
from wavenet.data.corpus import Corpus, Prepared, frames_of, recordings_of
from wavenet.features.conventions import MelConvention
from wavenet.features.frames import mel_spectrogram

RATE_HZ, HOP = 8000, 80
MEL = MelConvention(RATE_HZ, HOP, window_samples=256, fft_size=256, bands=16)
FORMANTS_HZ = ((300, 700), (700, 1200), (400, 2200), (1500, 3000), (2600, 3600))
FRAMES = 400


def sound(number, samples, draws):
    """One of five sounds: two tones and noise, never twice the same."""
    time = np.arange(samples) / RATE_HZ
    tones = [np.sin(2 * np.pi * (hz * time + draws.random())) for hz in FORMANTS_HZ[number]]
    return 0.1 * draws.uniform(0.5, 1.5) * sum(tones) + 0.003 * draws.standard_normal(samples)


def spoken(seed):
    """A recording of sounds in random order, 6 to 14 frames each, and each frame's sound."""
    draws, sounds = np.random.default_rng(seed), []
    while len(sounds) < FRAMES:
        sounds += [int(draws.integers(5))] * int(draws.integers(6, 15))
    sounds = np.array(sounds[:FRAMES])
    starts = np.flatnonzero(np.diff(sounds, prepend=-1))
    lengths = np.diff(starts, append=FRAMES)
    pieces = [sound(sounds[s], n * HOP, draws) for s, n in zip(starts, lengths, strict=True)]
    samples = to_int16(np.concatenate(pieces).astype(np.float32))
    mel = mel_spectrogram(from_int16(samples), MEL)
    return Prepared(f"{seed}.wav", "", 0, samples, mel, np.zeros(0, np.float32)), sounds


@pytest.fixture(scope="module")
def corpus():
    train, dev = [spoken(seed)[0] for seed in range(6)], [spoken(100)[0]]
    splits = {"train": tuple(train), "dev": tuple(dev)}
    return Corpus(RATE_HZ, splits, ("ann",), 1, 0.0, MEL, None, ())


@pytest.fixture(scope="module")
def lines():
    return []


@pytest.fixture(scope="module")
def classifier(corpus, lines):
    return perceptual.train_units(
        corpus, num_units=8, channels=16, steps=250, batch_size=8, clip_frames=48, log=lines.append
    )


def dev_mel(corpus):
    return frames_of(corpus, recordings_of(corpus, "dev")[0], ["mel"])


def recognised(classifier, mel):
    return tf.argmax(classifier.logits(mel[None]), -1)[0].numpy()


def test_a_cepstrum_follows_the_envelope_and_its_slope_the_change():
    rising = np.arange(6, dtype=np.float32)[:, None] + np.zeros([6, 16], np.float32)
    found = perceptual.cepstra(rising)
    assert found.shape == (6, 26)
    # The DCT of a flat spectrum is its level times sqrt(bands), and nothing else.
    np.testing.assert_allclose(found[:, 0], 4.0 * np.arange(6), rtol=1e-6)
    np.testing.assert_allclose(found[1:-1, 13], 4.0, rtol=1e-6)
    np.testing.assert_allclose(np.delete(found, (0, 13), axis=1), 0.0, atol=1e-5)


def test_units_are_the_sounds_of_the_language(classifier):
    recording, sounds = spoken(200)
    mel = perceptual.frames_of(
        Corpus(RATE_HZ, {}, ("ann",), 1, 0.0, MEL, None, ()), recording, ["mel"]
    )
    found = classifier.units(mel)
    likeliest = [np.bincount(sounds[found == unit]).max() for unit in set(found)]
    assert sum(likeliest) / FRAMES > 0.85
    assert len(set(found)) >= 5


def test_the_seed_decides_units_and_weights(corpus):
    def made(seed):
        return perceptual.train_units(corpus, num_units=5, channels=4, steps=1, seed=seed, log=len)

    first, again, other = made(3), made(3), made(4)
    np.testing.assert_array_equal(first.centres, again.centres)
    np.testing.assert_array_equal(first.kernels[0], again.kernels[0])
    assert not np.allclose(first.centres, other.centres)
    assert not np.allclose(first.kernels[0], other.kernels[0])


def test_units_of_recordings_never_heard_are_recognised_and_reported(classifier, corpus, lines):
    right, largest = perceptual.accuracy(classifier, corpus, "dev")
    assert largest < 0.35 and right > 0.65  # and chance is an eighth
    found = classifier.units(dev_mel(corpus))
    assert right == np.mean(recognised(classifier, dev_mel(corpus)) == found)
    assert largest == np.bincount(found).max() / len(found)
    assert "8 clusters of 2,400 frames" in lines[0]
    assert f"{100 * right:.1f} % of dev frames recognised" in lines[1]


def test_a_silenced_frame_is_recognised_by_its_neighbours(classifier, corpus):
    mel = dev_mel(corpus)
    expected, hidden = classifier.units(mel), range(5, FRAMES - 5, 10)
    right = []
    for frame in hidden:
        gap = mel.copy()
        gap[frame] = 0.0
        right.append(recognised(classifier, gap)[frame] == expected[frame])
    assert np.mean(right) > 0.6


def test_masking_silences_spans_and_moves_the_rest_a_little():
    mel = np.full([50, 40, 20], 0.5, np.float32)
    found = perceptual.augment_mel(mel, np.random.default_rng(0))
    np.testing.assert_array_equal(found, perceptual.augment_mel(mel, np.random.default_rng(0)))
    silent = found == 0.0
    assert np.abs(found - mel)[~silent].max() < perceptual.GAIN + 6 * perceptual.JITTER
    assert silent.all(axis=2).sum(axis=1).max() in (11, 12)  # two spans of six frames at most
    assert silent.all(axis=1).sum(axis=1).max() == 4  # a fifth of the bands at most
    level = found.sum(axis=(1, 2)) / np.maximum((~silent).sum(axis=(1, 2)), 1)
    assert level.min() < 0.5 - perceptual.GAIN / 2 and level.max() > 0.5 + perceptual.GAIN / 2


def test_masking_leaves_clips_of_one_frame_or_band_alone():
    mel = np.full([4, 1, 1], 0.5, np.float32)
    assert perceptual.augment_mel(mel, np.random.default_rng(0)).min() > 0.0


def test_hidden_features_are_those_that_the_logits_come_from(classifier, corpus):
    mel = dev_mel(corpus)[None]
    hidden = classifier.features(mel)
    logits = hidden[-1] @ classifier.head_kernel + classifier.head_bias
    np.testing.assert_allclose(classifier.logits(mel), logits, rtol=1e-4, atol=1e-4)
    assert [layer.shape for layer in hidden] == [(1, FRAMES, 16)] * 3


def test_features_have_a_gradient_to_the_frames_and_none_to_the_weights(classifier, corpus):
    mel = tf.constant(dev_mel(corpus)[None])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(mel)
        value = tf.reduce_sum(classifier.features(mel)[-1])
        trained = tf.reduce_sum(classifier.logits(mel))
    assert np.abs(tape.gradient(value, mel)).max() > 0.0
    assert all(g is None for g in tape.gradient(value, classifier.variables))
    assert all(g is not None for g in tape.gradient(trained, classifier.variables))


def test_a_classifier_comes_back_from_its_file(classifier, corpus, tmp_path):
    perceptual.save_units(classifier, tmp_path / "units.npz")
    loaded = perceptual.load_units(tmp_path / "units.npz")
    mel = dev_mel(corpus)
    assert loaded.config == classifier.config
    np.testing.assert_array_equal(loaded.logits(mel[None]), classifier.logits(mel[None]))
    np.testing.assert_array_equal(loaded.units(mel), classifier.units(mel))


@pytest.mark.parametrize(
    "text", ["{}", "[]", "no json", '{"kind": "speech units, format 9"}', None]
)
def test_a_foreign_file_is_explained(tmp_path, text):
    described = {} if text is None else {"description": np.array(text)}
    write_npz(tmp_path / "other.npz", {**described, "step": np.array(3)})
    with pytest.raises(UserError, match=r"other\.npz holds no speech units of this version"):
        perceptual.load_units(tmp_path / "other.npz")


def test_a_missing_file_and_one_with_a_wrong_or_missing_array_are_explained(classifier, tmp_path):
    path = tmp_path / "units.npz"
    with pytest.raises(UserError, match=r"There is no checkpoint .*units\.npz"):
        perceptual.load_units(path)
    perceptual.save_units(classifier, path)
    arrays = read_npz(path)
    write_npz(path, {**arrays, "kernel/1": arrays["kernel/1"][:, :-1]})
    with pytest.raises(UserError, match=r"`kernel/1` must be float32 of shape \(3, 16, 16\)"):
        perceptual.load_units(path)
    write_npz(path, {name: array for name, array in arrays.items() if name != "centres"})
    with pytest.raises(UserError, match=r"`centres` must be float32 of shape \(8, 26\)"):
        perceptual.load_units(path)


def test_wrong_arguments_are_explained(corpus):
    with pytest.raises(ValueError, match=r"`num_units` must be at most the 2400 frames, got 2401"):
        perceptual.train_units(corpus, num_units=2401, steps=1, log=len)
    with pytest.raises(ValueError, match="`corpus` must have mel frames, got none"):
        perceptual.train_units(dataclasses.replace(corpus, mel=None), steps=1, log=len)
    with pytest.raises(ValueError, match="`num_units` must be at least 2, got 1"):
        UnitConfig(MEL, num_units=1)
    with pytest.raises(ValueError, match="`channels` must be at least 1, got 0"):
        UnitConfig(MEL, channels=0)
    with pytest.raises(ValueError, match=r"`widths` must be one or more of at least 1, got \(\)"):
        UnitClassifier(UnitConfig(MEL, widths=()))
