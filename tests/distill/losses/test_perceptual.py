"""Speech units of a language of five sounds, and the perceptual losses, whatever the classifier."""

import dataclasses
import re

import numpy as np
import pytest
import tensorflow as tf
from hostile_files import refused

from distill.losses import perceptual
from distill.losses.perceptual import PerceptualLoss, UnitClassifier, UnitConfig, gram
from onepass.foundation.files import read_npz, write_npz
from onepass.replicator.portable.export import lower
from wavenet.config import MelConvention
from wavenet.data.audio import from_int16, to_int16
from wavenet.data.corpus import Corpus, Prepared, frames_of, recordings_of
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
def learnt(corpus):
    """A classifier, and the lines that its training says."""
    lines = []
    options = dict(num_units=8, channels=16, steps=250, batch_size=8, clip_frames=48)
    return perceptual.train_units(corpus, log=lines.append, **options), lines


@pytest.fixture(scope="module")
def classifier(learnt):
    return learnt[0]


@pytest.fixture(scope="module")
def mel(corpus):
    """The mel of a recording that was never heard."""
    return frames_of(corpus, recordings_of(corpus, "dev")[0], ["mel"])


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
    found = classifier.units(recording.mel)
    likeliest = [np.bincount(sounds[found == unit]).max() for unit in set(found)]
    assert sum(likeliest) / FRAMES > 0.85
    assert len(set(found)) >= 5


def trained(corpus, **options):
    return perceptual.train_units(corpus, steps=1, log=len, **options)


def test_the_seed_decides_units_and_weights(corpus):
    first, again, other = (trained(corpus, num_units=5, channels=4, seed=s) for s in (3, 3, 4))
    np.testing.assert_array_equal(first.centres, again.centres)
    np.testing.assert_array_equal(first.kernels[0], again.kernels[0])
    assert not np.allclose(first.centres, other.centres)
    assert not np.allclose(first.kernels[0], other.kernels[0])


def test_units_of_recordings_never_heard_are_recognised_and_reported(learnt, corpus, mel):
    classifier, lines = learnt
    right, largest = perceptual.accuracy(classifier, corpus, "dev")
    assert largest < 0.35 and right > 0.65  # and chance is an eighth
    found = classifier.units(mel)
    assert right == np.mean(np.argmax(classifier.logits(mel[None]), -1)[0] == found)
    assert largest == np.bincount(found).max() / len(found)
    assert "8 clusters of 2,400 frames" in lines[0]
    assert f"{100 * right:.1f} % of dev frames recognised" in lines[1]


def test_masking_silences_spans_and_moves_the_rest_a_little():
    mel = np.full([50, 40, 20], 0.5, np.float32)
    found, again = (perceptual.augment_mel(mel, np.random.default_rng(0)) for _ in range(2))
    np.testing.assert_array_equal(found, again)
    silent = found == 0.0
    assert np.abs(found - mel)[~silent].max() < perceptual.GAIN + 6 * perceptual.JITTER
    assert silent.all(axis=2).sum(axis=1).max() in (11, 12)  # two spans of six frames at most
    assert silent.all(axis=1).sum(axis=1).max() == 4  # a fifth of the bands at most
    level = found.sum(axis=(1, 2)) / np.maximum((~silent).sum(axis=(1, 2)), 1)
    assert level.min() < 0.5 - perceptual.GAIN / 2 and level.max() > 0.5 + perceptual.GAIN / 2
    short = np.full([4, 1, 1], 0.5, np.float32)  # of one frame and one band
    assert perceptual.augment_mel(short, np.random.default_rng(0)).min() > 0.0


def test_features_are_those_of_the_logits_and_give_the_frames_a_gradient_and_not_the_weights(
    classifier, mel
):
    frames = tf.constant(mel[None])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(frames)
        hidden, logits = classifier.features(frames), classifier.logits(frames)
        value = tf.reduce_sum(hidden[-1])
    expected = hidden[-1] @ classifier.head_kernel + classifier.head_bias
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
    assert [layer.shape for layer in hidden] == [(1, FRAMES, 16)] * 3
    assert np.abs(tape.gradient(value, frames)).max() > 0.0
    assert all(g is None for g in tape.gradient(value, classifier.variables))
    assert all(g is not None for g in tape.gradient(logits, classifier.variables))


def test_a_classifier_comes_back_from_its_file_and_damage_is_explained(classifier, mel, tmp_path):
    path = tmp_path / "units.npz"
    assert re.match(r"There is no checkpoint .*units\.npz", refused(perceptual.load_units, path))
    perceptual.save_units(classifier, path)
    loaded, arrays = perceptual.load_units(path), read_npz(path)
    assert loaded.config == classifier.config
    np.testing.assert_array_equal(loaded.logits(mel[None]), classifier.logits(mel[None]))
    np.testing.assert_array_equal(loaded.units(mel), classifier.units(mel))
    write_npz(path, {**arrays, "kernel/1": arrays["kernel/1"][:, :-1]})
    line = "`kernel/1` must be float32 of shape (3, 16, 16)"
    assert line in refused(perceptual.load_units, path)
    write_npz(path, {name: array for name, array in arrays.items() if name != "centres"})
    assert "`centres` must be float32 of shape (8, 26)" in refused(perceptual.load_units, path)
    for text in ("{}", "[]", "no json", '{"kind": "speech units, format 9"}', None):
        described = {} if text is None else {"description": np.array(text)}
        write_npz(path, {**described, "step": np.array(3)})
        line = f"{path} holds no speech units of this version"
        assert refused(perceptual.load_units, path).startswith(line)


def test_wrong_arguments_are_explained(corpus):
    mute = dataclasses.replace(corpus, mel=None)
    for call, line in (
        (lambda: trained(corpus, num_units=2401), "`num_units` must be at most the 2400 frames"),
        (lambda: trained(mute), "`corpus` must have mel frames, got none"),
        (lambda: UnitConfig(MEL, num_units=1), "`num_units` must be at least 2, got 1"),
        (lambda: UnitConfig(MEL, channels=0), "`channels` must be at least 1, got 0"),
        (lambda: UnitClassifier(UnitConfig(MEL, widths=())), "`widths` must be one or more"),
    ):
        assert line in refused(call)


COMPARED = {"features": tf.identity, "style": gram}


@pytest.fixture(scope="module")
def untrained():
    made = UnitClassifier(UnitConfig(MEL, num_units=4, channels=12), seed=1)
    made.band_mean += 0.4
    made.frame_scale = np.float32(0.2)
    return made


@pytest.fixture(params=COMPARED)
def loss(request, untrained):
    return PerceptualLoss(untrained, MEL, COMPARED[request.param])


def voice(samples=3200):
    """Tones that come and go over faint noise, two different sounds [2, samples]."""
    time, noise = np.arange(samples) / RATE_HZ, np.random.default_rng(0).normal(size=[2, samples])
    tones = [np.sin(2 * np.pi * hz * time) * np.sin(9 * time) for hz in (440.0, 1300.0)]
    return (0.1 * np.stack(tones) + 0.003 * noise).astype(np.float32)


def gradients(loss, sound, recorded):
    sound, recorded = tf.constant(sound), tf.constant(recorded)
    with tf.GradientTape() as tape:
        tape.watch([sound, recorded])
        value = loss(sound, recorded)
    return tape.gradient(value, [sound, recorded, *loss.classifier.variables])


def test_a_sound_is_like_itself_and_the_gradient_reaches_the_sound_and_nothing_else(loss):
    assert float(loss(voice(), voice())) == 0.0
    to_sound, *others = gradients(loss, voice()[::-1].copy(), voice())
    assert np.all(np.isfinite(to_sound)) and np.abs(to_sound).max() > 0.0
    assert all(gradient is None for gradient in others)


def test_style_does_not_know_when_a_sound_is_heard_and_features_do(untrained):
    style, features = PerceptualLoss(untrained, MEL, gram), PerceptualLoss(untrained, MEL)
    sound, other = (np.pad(x, [(0, 0), (2000, 2000)]) for x in (voice(), voice()[::-1]))
    later = np.pad(sound, [(0, 0), (10 * HOP, 0)])[:, : sound.shape[1]]
    assert float(style(later, sound)) < 1e-9
    assert float(style(other, sound)) > 1e-3
    assert float(features(later, sound)) > 0.01


def test_no_layer_outweighs_another(loss, untrained):
    before = float(loss(voice(), voice()[::-1]))
    kernel = untrained.kernels[1].numpy()
    untrained.kernels[1].assign(10.0 * kernel)  # biases are zero: later layers grow as much
    after = float(loss(voice(), voice()[::-1]))
    untrained.kernels[1].assign(kernel)
    assert after == pytest.approx(before, rel=1e-4)


def test_silence_gives_finite_gradients(loss):
    silence = np.zeros([2, 3200], np.float32)
    for sound, recorded in ((silence, voice()), (voice(), silence), (silence, silence)):
        assert np.all(np.isfinite(gradients(loss, sound, recorded)[0]))


def test_the_gradient_is_portable_and_reads_the_hidden_layers_alone(loss):
    def step(inputs):
        sound = inputs["sound"]
        with tf.GradientTape() as tape:
            tape.watch(sound)
            value = loss(sound, inputs["recorded"])
        return {"gradient": tape.gradient(value, sound)}

    specs = {name: tf.TensorSpec([2, 1600]) for name in ("sound", "recorded")}
    lowered = lower(step, specs)  # raises where it is not
    assert len([c for c in lowered.captures if c.dtype == tf.resource]) == 6


def test_another_convention_is_refused(untrained):
    with pytest.raises(ValueError, match="`convention` must be the classifier's"):
        PerceptualLoss(untrained, MelConvention(RATE_HZ, HOP, 240, 256, bands=13))
