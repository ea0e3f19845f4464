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


def influence(network, levels, condition, time):
    """Return the influence of each past sample on the parameters of one, [samples]."""
    wave = tf.cast(network.inputs(levels), tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(wave)
        parameters = network(wave, condition)[:, time]
        mixed = tf.reduce_sum(
            tf.sin(parameters * (1.0 + tf.range(parameters.shape[-1], dtype=tf.float64)))
        )
    return np.abs(tape.gradient(mixed, wave).numpy()[0])


@pytest.mark.parametrize("kind", SOME_SLOW)
@pytest.mark.parametrize("time", [160, 161, 162, 163])
def test_parameters_depend_on_all_the_near_past_and_on_nothing_else(kind, time):
    network, levels, condition = parts(kind)
    moved = influence(network, levels, condition, time)
    assert np.all(moved[time:] == 0.0)
    assert np.all(moved[time - 12 : time] > 0.0)


@pytest.mark.parametrize("kind", SOME_SLOW)
def test_parameters_end_at_the_receptive_field(kind):
    network, levels, condition = parts(kind, samples=1200)
    time = 1199
    moved = influence(network, levels, condition, time)
    reach = network.config.receptive_field
    assert np.all(moved[: max(0, time - reach)] == 0.0)


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


@pytest.mark.parametrize("kind", SOME_SLOW)
def test_every_weight_has_a_gradient(kind):
    network, levels, condition = parts(kind)
    with tf.GradientTape() as tape:
        condition = network.condition(frames_of(network, 1, SAMPLES))
        log_prob = network.likelihood.log_prob(network(network.inputs(levels), condition), levels)
        loss = tf.reduce_mean(log_prob)
    gradients = tape.gradient(loss, network.trainable_variables)
    reader = network.conditioner.reader
    still = [network.conditioner.mean, network.conditioner.deviation]
    still += reader.trainable_variables if reader else []
    for variable, gradient in zip(network.trainable_variables, gradients, strict=True):
        assert gradient is not None, variable.name
        moves = bool(tf.reduce_any(tf.convert_to_tensor(gradient) != 0.0))
        assert moves != any(variable is v for v in still), variable.name


@pytest.mark.parametrize("value", [0.0, 1e6, -1e6])
@pytest.mark.parametrize("kind", ["prediction, pitch", "prediction, given pitch"])
def test_any_frames_give_a_density(kind, value):
    network = vocoder_of(kind)  # given an F0 of the same value: 0 throughout, or beyond all voices
    frames = tf.fill([1, 1, network.config.feature_channels], value)
    levels = tf.constant(levels_of(network, 1, network.config.hop_samples))
    parameters = network(network.inputs(levels), network.condition(frames))
    assert np.isfinite(parameters).all()
    assert np.isfinite(network.likelihood.log_prob(parameters, levels)).all()
