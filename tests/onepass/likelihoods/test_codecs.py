"""Codecs: every symbol comes back, every element to within half a step, whatever it stands for."""

import numpy as np
import pytest
import tensorflow as tf

from onepass.likelihoods import Integers, Linear, MuLaw, Reals

OF_SOUND = [Linear, MuLaw]


@pytest.mark.parametrize(
    ("kind", "levels"),
    [(kind, levels) for kind in OF_SOUND for levels in (2, 3, 255, 256, 65536)] + [(Linear, 2**22)],
)
def test_encode_undoes_decode_on_every_level(kind, levels):
    codec, every = kind(levels), np.arange(levels, dtype=np.int32)
    waveform = codec.decode(every).numpy()
    np.testing.assert_array_equal(codec.encode(waveform), every)
    assert waveform.min() >= -1
    assert waveform.max() <= 1
    np.testing.assert_allclose(waveform, -waveform[::-1], atol=1e-6)


@pytest.mark.parametrize("levels", [2, 256, 65536])
@pytest.mark.parametrize("kind", OF_SOUND)
def test_decode_undoes_encode_within_half_a_step(kind, levels):
    codec, waveform = kind(levels), np.linspace(-1, 1, 20_001)
    error = codec.decode(codec.encode(waveform)).numpy() - waveform
    mu = levels - 1
    if kind is MuLaw:  # a step y of the companded value is this much of the waveform
        inside = np.minimum(np.abs(waveform) + np.abs(error), 1)
        step = 2 / mu * np.log1p(mu) * (1 + mu * inside) / mu
    else:
        step = 2 / mu
    assert np.all(np.abs(error) <= 0.505 * step + 3e-7)  # float32 counts 16-bit steps to 1%


def test_quiet_16_bit_samples_stay_apart():
    """The 2^16 numbers s / 2^15 reach 2^16 - 1 levels, so one pair shares a level."""
    samples = np.arange(-(2**15), 2**15)
    levels = Linear(65536).encode((samples / 2**15).astype(np.float32)).numpy()
    assert np.sum(np.diff(levels) == 0) == 1 and np.diff(levels).min() == 0
    exact = np.floor(samples * 65535 / 65536) + 2**15
    np.testing.assert_array_equal(levels, exact)


@pytest.mark.parametrize("levels", [2, 3, 255, 256, 65536])
def test_values_to_either_side_of_a_border_take_the_level_there(levels):
    borders = (2 * np.arange(1, levels) - levels) / (levels - 1)
    for side, expected in ((-1e-9, np.arange(levels - 1)), (1e-9, np.arange(1, levels))):
        encoded = Linear(levels).encode(tf.constant(borders + side, tf.float64))
        np.testing.assert_array_equal(encoded, expected)


def test_mu_law_follows_its_formula():
    waveform = np.array([-1, -0.5, -0.01, 1e-4, 0.003, 0.25, 1])
    companded = np.sign(waveform) * np.log(1 + 255 * np.abs(waveform)) / np.log(256)
    expected = np.round((companded + 1) / 2 * 255)
    np.testing.assert_array_equal(MuLaw().encode(waveform), expected)


@pytest.mark.parametrize("kind", [*OF_SOUND, Integers])
def test_scale_spans_minus_one_to_one_in_equal_steps(kind):
    scaled = kind(256).scale(np.arange(256, dtype=np.int32))
    np.testing.assert_allclose(scaled, 2 * np.arange(256) / 255 - 1, atol=1e-7)


@pytest.mark.parametrize("kind", OF_SOUND)
def test_waveforms_beyond_the_range_take_the_outer_levels(kind):
    np.testing.assert_array_equal(kind(256).encode([-3.0, 3.0]), [0, 255])


def test_integers_are_symbols_as_they_are_and_floats_are_refused():
    codec, image = Integers(4096), np.array([[0, 1, 4095]], np.uint16)
    np.testing.assert_array_equal(codec.decode(codec.encode(image)), image)
    assert codec.encode(image).dtype == tf.int32
    with pytest.raises(ValueError, match=r"^`elements` must be integers, got float32"):
        codec.encode(tf.zeros([2]))


def test_reals_come_back_and_their_unit_is_that_of_a_density():
    codec, degrees = Reals(centre=15.0, unit=20.0), np.array([-5.0, 15.0, 35.0], np.float32)
    np.testing.assert_allclose(codec.encode(degrees), [-1.0, 0.0, 1.0])
    np.testing.assert_allclose(codec.decode(codec.encode(degrees)), degrees)
    assert codec.log_unit == pytest.approx(np.log(20.0)) and codec.levels is None


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Linear(1), "`levels` must be between 2 and 4194304, got 1"),
        (lambda: MuLaw(65537), "`levels` must be between 2 and 65536, got 65537"),
        (lambda: Integers(0), "`levels` must be between 2 and 4194304, got 0"),
        (lambda: Reals(unit=0.0), "`unit` must be above 0 and finite, got 0.0"),
    ],
)
def test_impossible_codecs_are_refused(make, said):
    with pytest.raises(ValueError, match=f"^{said}"):
        make()
