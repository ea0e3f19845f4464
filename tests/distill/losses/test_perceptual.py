"""The perceptual losses, whatever the classifier."""

import numpy as np
import pytest
import tensorflow as tf

from distill.losses.perceptual import PerceptualLoss, UnitClassifier, UnitConfig, gram
from onepass.replicator.portable.export import lower
from wavenet.features.conventions import MelConvention

RATE_HZ, HOP = 8000, 80
MEL = MelConvention(RATE_HZ, HOP, window_samples=240, fft_size=256, bands=12, floor=1e-3)
COMPARED = {"features": tf.identity, "style": gram}


@pytest.fixture(scope="module")
def classifier():
    classifier = UnitClassifier(UnitConfig(MEL, num_units=4, channels=12), seed=1)
    classifier.band_mean += 0.4
    classifier.frame_scale = np.float32(0.2)
    return classifier


@pytest.fixture(params=COMPARED)
def loss(request, classifier):
    return PerceptualLoss(classifier, MEL, COMPARED[request.param])


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


def test_style_does_not_know_when_a_sound_is_heard_and_features_do(classifier):
    style, features = PerceptualLoss(classifier, MEL, gram), PerceptualLoss(classifier, MEL)
    sound, other = (np.pad(x, [(0, 0), (2000, 2000)]) for x in (voice(), voice()[::-1]))
    later = np.pad(sound, [(0, 0), (10 * HOP, 0)])[:, : sound.shape[1]]
    assert float(style(later, sound)) < 1e-9
    assert float(style(other, sound)) > 1e-3
    assert float(features(later, sound)) > 0.01


def test_no_layer_outweighs_another(loss, classifier):
    before = float(loss(voice(), voice()[::-1]))
    kernel = classifier.kernels[1].numpy()
    classifier.kernels[1].assign(10.0 * kernel)  # biases are zero: later layers grow as much
    after = float(loss(voice(), voice()[::-1]))
    classifier.kernels[1].assign(kernel)
    assert after == pytest.approx(before, rel=1e-4)


def test_silence_gives_finite_gradients(loss):
    silence = np.zeros([2, 3200], np.float32)
    for sound, recorded in ((silence, voice()), (voice(), silence), (silence, silence)):
        assert np.all(np.isfinite(gradients(loss, sound, recorded)[0]))


def test_the_gradient_is_portable_and_reads_the_hidden_layers_alone(classifier, loss):
    def step(inputs):
        sound = inputs["sound"]
        with tf.GradientTape() as tape:
            tape.watch(sound)
            value = loss(sound, inputs["recorded"])
        return {"gradient": tape.gradient(value, sound)}

    specs = {name: tf.TensorSpec([2, 1600]) for name in ("sound", "recorded")}
    lowered = lower(step, specs)  # raises where it is not
    assert len([c for c in lowered.captures if c.dtype == tf.resource]) == 6


def test_another_convention_is_refused(classifier):
    with pytest.raises(ValueError, match="`convention` must be the classifier's"):
        PerceptualLoss(classifier, MelConvention(RATE_HZ, HOP, 240, 256, bands=13))
