"""Bits of linear prediction from the mel: a code length, and better the more it knows."""

import numpy as np
import pytest
import scipy.signal

from wavenet import shipped
from wavenet.data import audio
from wavenet.features.conventions import MelConvention
from wavenet.linear_prediction import measure_untrained_bits

RATE_HZ = 16_000
MEL = MelConvention(RATE_HZ, hop_samples=200, bands=40)


def item(waveform):
    """A waveform on the grid of 16 bits, as every recording is."""
    return {"waveform": audio.from_int16(audio.to_int16(np.asarray(waveform, np.float32)))}


def noise(level, samples=RATE_HZ, seed=0):
    return np.random.default_rng(seed).normal(0.0, level, samples)


def mean_bits(waveforms, order=16):
    bits, samples = measure_untrained_bits([item(w) for w in waveforms], MEL, order)
    return float(np.average(bits, weights=samples))


def test_white_noise_costs_its_entropy():
    # h = log2(sigma sqrt(2 pi e)) over the step between levels, 2 / 65535.
    for level in (0.01, 0.1):
        entropy = np.log2(level * np.sqrt(2.0 * np.pi * np.e) * 65535.0 / 2.0)
        found = mean_bits([noise(level)])
        assert entropy - 0.02 < found < entropy + 0.15  # a mel knows its own noise only roughly


def test_a_resonance_is_predicted_and_costs_less_than_its_level():
    poles = 0.98 * np.exp(2j * np.pi * 1000.0 / RATE_HZ)
    resonant = scipy.signal.lfilter([1.0], np.poly([poles, np.conj(poles)]).real, noise(0.005))
    as_loud = noise(float(np.std(resonant)))
    assert mean_bits([resonant]) < mean_bits([as_loud]) - 1.0


def test_more_coefficients_predict_speech_better():
    path = min(shipped.recordings_folder().glob("dev/*.flac"))
    speech = audio.amplify(audio.read(path, RATE_HZ)[:RATE_HZ], 6.0)
    by_order = [mean_bits([speech], order) for order in (1, 8, 32)]
    assert by_order[0] > by_order[1] + 0.1 and by_order[1] > by_order[2]


def test_lengths_come_back_and_any_length_will_do():
    waveforms = [noise(0.1, samples) for samples in (1, 201, 3999)]
    bits, samples = measure_untrained_bits([item(w) for w in waveforms], MEL, 4)
    assert samples.tolist() == [1, 201, 3999]
    assert np.all(np.isfinite(bits)) and np.all(bits > 0.0)


def test_digital_silence_costs_next_to_nothing():
    silence = np.full(8000, 1.0 / 65535.0)
    assert measure_untrained_bits([{"waveform": silence}], MEL, 8)[0][0] < 2.0


def test_an_order_below_one_is_refused():
    with pytest.raises(ValueError, match="`order` must be at least 1, got 0"):
        measure_untrained_bits([item(noise(0.1))], MEL, 0)
