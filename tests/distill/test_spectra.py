"""Differentiable spectra against their definitions, and the losses that compare them."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from distill.losses.spectra import log_mel, magnitude_loss, magnitudes, multi_loss, squared_loss
from wavenet import shipped
from wavenet.config import MelConvention
from wavenet.data import audio
from wavenet.features.frames import mel_spectrogram

RATE_HZ = 16000
CONVENTIONS = (
    MelConvention(RATE_HZ, 200, 800, 1024, bands=40),
    MelConvention(RATE_HZ, 256, 1024, 1024, bands=20, padding="reflect", log="log10"),
    MelConvention(RATE_HZ, 100, 401, 512, bands=8, scale="htk", normalisation="peak", floor=1e-3),
)


def speechlike(seed, samples):
    """Noise that swells, after a tenth of digital silence."""
    draws = np.random.default_rng(seed).normal(0.0, 0.1, samples)
    swell = np.clip(np.linspace(-0.1, 1.0, samples), 0.0, 1.0) ** 2
    return (draws * swell).astype(np.float32)


def gradient(function, waveform):
    waveform = tf.constant(waveform)
    with tf.GradientTape() as tape:
        tape.watch(waveform)
        value = function(waveform)
    return tape.gradient(value, waveform).numpy()


@pytest.mark.parametrize(
    ("convention", "samples"),
    [*itertools.product(CONVENTIONS, [4000, 3999, 4001, 900]), (CONVENTIONS[0], 130)],
)
def test_log_mel_is_that_of_the_corpus(convention, samples):
    waveforms = np.stack([speechlike(seed, samples) for seed in (0, 1)])
    expected = np.stack([mel_spectrogram(w, convention) for w in waveforms])
    np.testing.assert_allclose(log_mel(waveforms, convention), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_log_mel_has_a_finite_gradient_where_sound_meets_silence(convention):
    found = gradient(lambda w: tf.reduce_sum(log_mel(w, convention)), speechlike(0, 4000)[None])
    assert np.all(np.isfinite(found))
    assert np.abs(found[0, 2000:]).max() > 0.0


def test_gradients_of_exact_silence_are_zero():
    silence = np.zeros([1, 2000], np.float32)
    for function in (
        lambda w: tf.reduce_sum(log_mel(w, CONVENTIONS[0])),
        lambda w: tf.reduce_sum(magnitudes(w, 400, 100, 512)),
    ):
        np.testing.assert_array_equal(gradient(function, silence), silence)


def test_gradient_of_magnitudes_is_the_numeric_difference():
    waveform = np.random.default_rng(3).normal(0.0, 0.3, [1, 90]).astype(np.float32)
    weights = np.random.default_rng(4).normal(size=[1, 3, 17]).astype(np.float32)

    def value(w):
        return tf.reduce_sum(magnitudes(w, 32, 29, 32) * weights)

    found = gradient(value, waveform)[0]
    for sample in (1, 20, 31, 45, 70, 89):
        step = np.zeros_like(waveform)
        step[0, sample] = 3e-3
        numeric = (value(waveform + step) - value(waveform - step)) / 6e-3
        assert found[sample] == pytest.approx(float(numeric), abs=2e-3)


def test_wrong_arguments_are_explained():
    sound = np.zeros([1, 300], np.float32)
    for call, line in (
        (
            lambda: magnitudes(sound, 400, 100, 512),
            "`waveform` must last at least 400 samples",
        ),
        (lambda: magnitudes(sound, 200, 100, 128), "`fft_size` must be at least 200, got 128"),
        (lambda: magnitudes(sound, 200, 0, 256), "`hop_samples` must be at least 1, got 0"),
        (
            lambda: log_mel(sound[0], CONVENTIONS[0]),
            r"`waveform` must have the shape \[batch, time",
        ),
    ):
        with pytest.raises(ValueError, match=line):
            call()


@pytest.fixture(scope="module")
def speech():
    path = sorted(shipped.recordings_folder().glob("dev/*.flac"))[0]
    return audio.amplify(audio.read(path, RATE_HZ)[: 2 * RATE_HZ], 4.64)


@pytest.mark.parametrize("loss", [squared_loss, magnitude_loss, multi_loss])
def test_losses_grow_with_noise_and_do_not_hear_phase_or_depend_on_the_level(loss, speech):
    recorded = tf.constant(speech[None, :8000])
    noise = 0.05 * tf.constant(np.random.default_rng(0).normal(0, 1, [1, 8000]), tf.float32)
    values = [float(loss(recorded + scale * noise, recorded)) for scale in (0.0, 0.3, 1.0)]
    assert values[0] < 1e-6 and values[0] < values[1] < values[2]
    turned = float(loss(-recorded, recorded))
    halved = float(loss(0.5 * recorded, recorded))
    assert turned < 1e-6 < halved
    quiet = [float(loss(0.5 * x, x)) for x in (recorded, 0.7 * recorded)]
    np.testing.assert_allclose(*quiet, rtol=0.1)
