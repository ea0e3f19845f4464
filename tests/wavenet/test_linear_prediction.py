"""Linear prediction from the mel: Levinson's recursion solves its equations, and never fails."""

import platform

import numpy as np
import pytest
import scipy.linalg
import scipy.signal
import tensorflow as tf
import vocoders

from distill.config import StudentConfig
from distill.cpu.kernels import levinson as compiled_levinson
from distill.model import load
from onepass.foundation.model_folders import folder
from wavenet.config import DataConfig, MelConvention, TrainConfig, WaveNetConfig
from wavenet.data import audio
from wavenet.features.frames import above_silence, mel_spectrogram
from wavenet.linear_prediction import (
    FLOOR,
    WHITE_NOISE,
    MelPrediction,
    band_to_bin,
    bin_to_lag,
    levinson,
    levinson_unrolled,
    measure_untrained_bits,
    predictions,
)
from wavenet.training import SpeechRecipe

MEL = MelConvention(16_000, 200)


def noise(samples, seed=0):
    return np.random.default_rng(seed).standard_normal(samples).astype(np.float32)


@pytest.mark.parametrize("order", [1, 2, 7, 24])
def test_levinson_solves_the_normal_equations(order):
    x = np.convolve(noise(4000), [1.0, 0.7, -0.3, 0.2])
    r = np.array([x[: len(x) - k] @ x[k:] for k in range(order + 1)], np.float32)
    coefficients, error = levinson(tf.constant(r[None]))
    exact = scipy.linalg.solve_toeplitz(r[:-1].astype(np.float64), r[1:])
    np.testing.assert_allclose(coefficients[0], exact, atol=2e-3)
    np.testing.assert_allclose(error[0], r[0] - exact @ r[1:], rtol=1e-3)
    double = tf.constant(r[None].astype(np.float64))
    for one, other in zip(levinson(double), levinson_unrolled(double), strict=True):  # of 0.2
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


def test_a_prediction_that_is_not_exact_is_the_recursion_in_float32_to_the_bit():
    """Power, autocorrelation and recursion, in the order of operations of its definition."""
    frames = above_silence(mel_spectrogram(0.02 * noise(4000), MEL), MEL)
    bands = tf.exp(tf.cast(MEL.silence, tf.float32) * (1.0 - tf.clip_by_value(frames, -0.5, 1.5)))
    r = tf.matmul(tf.square(tf.matmul(bands, band_to_bin(MEL))), bin_to_lag(MEL, 24))
    r = tf.concat([r[:, :1] + (WHITE_NOISE * r[:, :1] + FLOOR**2), r[:, 1:]], -1)
    coefficients, error = r[:, :0], r[:, 0]
    for i in range(1, 25):
        explained = tf.reduce_sum(coefficients * r[:, i - 1 : 0 : -1], -1)
        k = tf.clip_by_value((r[:, i] - explained) / error, -0.9999, 0.9999)[:, None]
        coefficients = tf.concat([coefficients - k * coefficients[:, ::-1], k], -1)
        error *= 1.0 - tf.square(k[:, 0])
    made, log_gain, log_level = MelPrediction(MEL, 24, exact=False)(frames)
    np.testing.assert_array_equal(made, coefficients)
    np.testing.assert_array_equal(log_gain, 0.5 * tf.math.log(error))
    np.testing.assert_array_equal(log_level, 0.5 * tf.math.log(r[:, 0]))
    assert not np.array_equal(made, MelPrediction(MEL, 24)(frames)[0])


def test_shipped_models_say_whether_their_prediction_is_exact_and_new_ones_are():
    names = ("teacher", "kathleen", "universal-teacher", "small")
    models = [load(folder(f"shipped-{name}")) for name in names]
    networks = [getattr(m.config, "student", None) or m.config.network for m in models]
    assert [n.exact_prediction for n in networks] == [False, False, True, True]
    assert WaveNetConfig().exact_prediction and StudentConfig().exact_prediction


@pytest.mark.parametrize("order", [1, 7, 24, 32])
@pytest.mark.parametrize("frames", [1, 5, 33, 70])
def test_compiled_for_a_processor_the_recursion_is_the_same(order, frames):
    """Bits are the same for whole vectors of frames where a step's terms come in fours."""
    spectra = np.abs(np.fft.rfft(np.random.default_rng(order).standard_normal([2, frames, 128])))
    r = np.fft.irfft(np.square(spectra))[..., : order + 1]
    kernel, error = compiled_levinson(tf.constant(r))
    assert kernel.shape == (2, frames, order) and error.shape == (2, frames)
    expected = levinson(tf.constant(r))
    np.testing.assert_allclose(kernel, expected[0], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(error, expected[1], rtol=1e-9)
    whole = r.reshape([-1, order + 1])[: frames // 4 * 8]
    if platform.machine() == "x86_64" and order % 4 == 0 and frames > 4:
        for one, other in zip(compiled_levinson(whole), levinson(tf.constant(whole)), strict=True):
            np.testing.assert_array_equal(one, other)
    row = compiled_levinson(tf.constant(r[1, -1:]))
    np.testing.assert_array_equal(row[0][0], kernel[1, -1])  # in any batch


def test_loud_and_silent_bands_side_by_side_leave_the_predictor_exact():
    """In float32 the recursion finds other coefficients, in TensorFloat32 none."""
    frames = np.linspace(1.0, 0.2, 80, dtype=np.float32)[None, None]
    prediction = MelPrediction(MEL, 32)
    bands = np.exp(MEL.silence * (1.0 - frames[0, 0]))
    power = np.square(bands @ band_to_bin(MEL)).astype(np.float32).astype(np.float64)
    r = power @ bin_to_lag(MEL, 32)
    r[0] += WHITE_NOISE * r[0] + FLOOR**2
    exact = scipy.linalg.solve_toeplitz(r[:-1], r[1:])
    np.testing.assert_allclose(prediction(frames)[0][0, 0], exact, atol=1e-4)
    single = levinson(tf.constant(r[None].astype(np.float32)))[0][0]
    assert np.abs(single - exact).max() > 3e-4  # what rounding costs here


@pytest.mark.parametrize("value", [0.0, 1.0, -1e6, 1e6, 0.5])
@pytest.mark.parametrize("frames", [1, 3])
def test_no_mel_gives_a_number_that_is_none(value, frames):
    mel = np.full([1, frames, 80], value, np.float32)
    mel[..., ::2] *= 0.5
    for part in MelPrediction(MEL, 32)(mel):
        assert np.all(np.isfinite(part))


@pytest.mark.parametrize("order", [16, 32])
def test_the_filter_of_any_mel_is_stable(order):
    mel = np.random.default_rng(1).uniform(0, 1, [1, 50, 80]).astype(np.float32)
    coefficients, _, _ = MelPrediction(MEL, order)(mel)
    for a in coefficients.numpy()[0].astype(np.float64):
        assert np.abs(np.roots([1.0, *-a])).max() < 1.0


def test_predictions_are_the_sum_of_their_definition():
    wave, rows = noise(40).reshape(1, 40), noise(2 * 3, 2).reshape(1, 2, 3)
    expected = np.zeros(40)
    for t in range(40):
        for k in range(1, 4):
            expected[t] += rows[0, t // 20, k - 1] * (wave[0, t - k] if t >= k else 0.0)
    np.testing.assert_allclose(predictions(tf.constant(wave), tf.constant(rows))[0], expected, 1e-5)


def test_no_order_is_refused():
    with pytest.raises(ValueError, match="`order` must be at least 1"):
        MelPrediction(MEL, 0)


def test_an_exported_step_rounds_no_product_of_a_linear_prediction():
    for kind, rounds in (("dense conditioner", True), ("prediction", False)):
        network = WaveNetConfig(**(vocoders.SMALL | vocoders.KINDS[kind]))
        config = TrainConfig(network, DataConfig(16_000, ("mel",), mel_bands=20))
        setup = SpeechRecipe("tiny", config, None).set_up(None, (config, None))
        assert setup.tensor_float_32 is rounds


# What a recording costs by the prediction of its mel alone


RATE_HZ = 16_000
FEW_BANDS = MelConvention(RATE_HZ, hop_samples=200, bands=40)


def item(waveform):
    """A waveform on the grid of 16 bits, as every recording is."""
    return {"waveform": audio.from_int16(audio.to_int16(np.asarray(waveform, np.float32)))}


def noise_of(level, samples=RATE_HZ, seed=0):
    return np.random.default_rng(seed).normal(0.0, level, samples)


def mean_bits(waveforms, order=16):
    bits, samples = measure_untrained_bits([item(w) for w in waveforms], FEW_BANDS, order)
    return float(np.average(bits, weights=samples))


def test_white_noise_costs_its_entropy():
    # h = log2(sigma sqrt(2 pi e)) over the step between levels, 2 / 65535.
    for level in (0.01, 0.1):
        entropy = np.log2(level * np.sqrt(2.0 * np.pi * np.e) * 65535.0 / 2.0)
        found = mean_bits([noise_of(level)])
        assert entropy - 0.02 < found < entropy + 0.15  # a mel knows its own noise_of only roughly


def test_a_resonance_is_predicted_and_costs_less_than_its_level():
    poles = 0.98 * np.exp(2j * np.pi * 1000.0 / RATE_HZ)
    resonant = scipy.signal.lfilter([1.0], np.poly([poles, np.conj(poles)]).real, noise_of(0.005))
    as_loud = noise_of(float(np.std(resonant)))
    assert mean_bits([resonant]) < mean_bits([as_loud]) - 1.0


def test_lengths_come_back_and_any_length_will_do():
    waveforms = [noise_of(0.1, samples) for samples in (1, 201, 3999)]
    bits, samples = measure_untrained_bits([item(w) for w in waveforms], FEW_BANDS, 4)
    assert samples.tolist() == [1, 201, 3999]
    assert np.all(np.isfinite(bits)) and np.all(bits > 0.0)
