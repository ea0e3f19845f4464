"""The vocoder's network: causal, exact, and the same however its condition is laid out."""

import functools

import numpy as np
import pytest
import tensorflow as tf
import vocoders
from vocoders import SOME_SLOW, frames_of, levels_of

SAMPLES = 240


@functools.cache
def vocoder_of(kind, **changes):
    """A network that nobody changes."""
    return vocoders.vocoder_of(kind, **changes)


@functools.cache
def parts(kind, batch=1, samples=SAMPLES):
    network = vocoder_of(kind, compute_dtype="float64")
    frames = frames_of(network, batch, samples)
    return network, levels_of(network, batch, samples), network.condition(frames)


@pytest.mark.parametrize("kind", SOME_SLOW)
def test_probabilities_of_all_levels_sum_to_one(kind):
    network = vocoder_of(kind, levels=32)
    levels = levels_of(network, 1, SAMPLES)
    parameters = network(network.inputs(levels), network.condition(frames_of(network, 1, SAMPLES)))
    every = tf.stack(
        [network.likelihood.log_prob(parameters, tf.fill(levels.shape, k)) for k in range(32)]
    )
    np.testing.assert_allclose(tf.reduce_sum(tf.exp(every), 0), 1.0, rtol=2e-5)


@pytest.mark.parametrize("kind", SOME_SLOW)
def test_a_condition_by_rows_equals_one_by_samples(kind):
    network, levels, condition = parts(kind, batch=2)
    inputs = network.inputs(levels)
    rows = network.rows(frames_of(network, 2, SAMPLES))
    by_rows = network(inputs, rows, network.row_samples)
    np.testing.assert_allclose(by_rows, network(inputs, condition), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", SOME_SLOW)
def test_neighbouring_frames_stand_in_for_the_whole_recording(kind):
    network = vocoder_of(kind, compute_dtype="float64")
    frames = frames_of(network, 1, 30 * network.config.hop_samples)
    side = network.conditioner.side_frames
    whole = network.rows(frames)
    per_frame = network.config.subframes
    for extra in (0, 2):
        cut = network.rows(frames[:, 10 - side - extra : 20 + side + extra], None, side + extra)
        np.testing.assert_allclose(
            cut, whole[:, 10 * per_frame : 20 * per_frame], rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("kind", SOME_SLOW)
def test_silence_is_what_lies_beyond_a_recording(kind):
    network = vocoder_of(kind)
    frames = frames_of(network, 1, 4 * network.config.hop_samples)
    side = network.conditioner.side_frames
    padded = tf.pad(frames, [[0, 0], [side, side], [0, 0]])
    np.testing.assert_array_equal(network.rows(frames), network.rows(padded, None, side))


@pytest.mark.parametrize("value", [0.0, 1e6, -1e6])
@pytest.mark.parametrize("kind", ["prediction, pitch", "prediction, given pitch"])
def test_any_frames_give_a_density(kind, value):
    network = vocoder_of(kind)  # given an F0 of the same value: 0 throughout, or beyond all voices
    frames = tf.fill([1, 1, network.config.feature_channels], value)
    levels = tf.constant(levels_of(network, 1, network.config.hop_samples))
    parameters = network(network.inputs(levels), network.condition(frames))
    assert np.isfinite(parameters).all()
    assert np.isfinite(network.likelihood.log_prob(parameters, levels)).all()
