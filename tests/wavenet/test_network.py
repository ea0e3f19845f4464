"""The laws of the network: what depends on what, and on how much."""

import dataclasses
import functools

import networks
import numpy as np
import pytest
import tensorflow as tf
import vocoders
from networks import ADAPTIVE, KINDS, SMALL, WINDOWS, condition_of, levels_of

from wavenet.config import WaveNetConfig
from wavenet.density import Density
from wavenet.network import WaveNet, upsample

FLOAT_KINDS = [kind for kind in KINDS if "softmax" not in kind]
SAMPLES, AT = 96, 70
VOCODERS = vocoders.SOME_SLOW


@functools.cache
def network_of(kind):
    """A network that nobody changes."""
    if kind in vocoders.KINDS:
        return vocoders.vocoder_of(kind, compute_dtype="float64")
    return networks.network_of(kind)


def condition_for(network, batch, samples):
    if network.config.conditioner_units:
        return network.condition(vocoders.frames_of(network, batch, samples))
    return condition_of(network, batch, samples)


@functools.cache
def gradient_of(kind, at=AT, samples=SAMPLES):
    """|d (a mixed sum of the parameters at a sample) / d input_s| for every s."""
    network = network_of(kind)
    inputs = network.inputs(tf.constant(levels_of(network, 1, samples)))
    inputs = tf.cast(inputs, network.config.compute_dtype)
    condition = condition_for(network, 1, samples)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        chosen = network(inputs, condition)[0, at]
        mixing = tf.sin(1.0 + np.arange(chosen.shape[0]))
        mixed = tf.reduce_sum(chosen * tf.cast(mixing, chosen.dtype))
    return np.abs(tape.gradient(mixed, inputs).numpy())[0]


@pytest.mark.parametrize("kind", [*FLOAT_KINDS, WINDOWS, *VOCODERS])
def test_output_reads_the_near_past_and_no_present_or_future_samples(kind):
    is_vocoder = kind in vocoders.KINDS  # which reads the past of whole bunches
    near = min(12, network_of(kind).config.receptive_field)
    for at in (160, 161, 162, 163) if is_vocoder else (AT,):
        gradient = gradient_of(kind, at, 240 if is_vocoder else SAMPLES)
        assert (gradient[at:] == 0).all() and (gradient[at - near : at] > 0).all()


@pytest.mark.parametrize("kind", [*(k for k in FLOAT_KINDS if "context" not in k), *VOCODERS])
def test_output_depends_on_its_whole_receptive_field_and_no_further(kind):
    reach = network_of(kind).config.receptive_field
    if kind in vocoders.KINDS:
        gradient = gradient_of(kind, 1199, 1200)
        assert (gradient[: max(0, 1199 - reach)] == 0).all()
        return
    gradient = gradient_of(kind)
    assert reach < AT and (gradient[AT - reach : AT] > 0).all()
    assert (gradient[: AT - reach] == 0).all()


def test_context_stack_sees_whole_past_blocks_beyond_the_receptive_field():
    config, gradient = network_of("mixture, context").config, gradient_of("mixture, context")
    block = AT // config.context_block_samples * config.context_block_samples
    assert config.receptive_field < block
    assert (gradient[:block] > 0).all()


def test_softmax_network_ignores_present_and_future_levels():
    network = network_of("softmax, speakers")
    levels = levels_of(network, 1, SAMPLES)
    changed = levels.copy()
    changed[:, AT:] = 255 - changed[:, AT:]
    condition = condition_of(network, 1, SAMPLES)
    before = network(tf.constant(levels), condition)
    after = network(tf.constant(changed), condition)
    np.testing.assert_array_equal(before[:, : AT + 1], after[:, : AT + 1])
    assert np.abs(before[:, AT + 1] - after[:, AT + 1]).max() > 0


@pytest.mark.parametrize("kind", [k for k in KINDS if "frames" in k or "speakers" in k])
def test_every_layer_hears_the_condition(kind):
    network = network_of(kind)
    inputs = network.inputs(tf.constant(levels_of(network, 2, 32)))
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(tf.square(network(inputs, condition_of(network, 2, 32))))
    kernels = [layer.condition_kernel for layer in network.stack.layers]
    assert all(np.abs(g).max() > 0 for g in tape.gradient(total, kernels))


@pytest.mark.parametrize("kind", [*KINDS, WINDOWS, *VOCODERS])
def test_every_weight_gets_a_finite_gradient(kind):
    network = network_of(kind)
    levels, still = tf.constant(levels_of(network, 2, 80)), []
    if kind in vocoders.KINDS:  # the reader of F0 is taught by itself
        conditioner = network.conditioner
        still = [conditioner.mean, conditioner.deviation]
        still += conditioner.reader.trainable_variables if conditioner.reader else []
    with tf.GradientTape() as tape:
        # The condition belongs under the tape: its upsampling is learned too.
        parameters = network(network.inputs(levels), condition_for(network, 2, 80))
        loss = -tf.reduce_mean(network.likelihood.log_prob(parameters, levels))
    gradients = tape.gradient(loss, network.trainable_variables)
    for variable, gradient in zip(network.trainable_variables, gradients, strict=True):
        dense = tf.convert_to_tensor(gradient).numpy()
        assert np.isfinite(dense).all(), variable.name
        moves = np.abs(dense).max() > 0
        assert moves != any(variable is other for other in still), variable.name


def test_amplifying_inside_changes_units_only():
    """Halving the weights that read the wave undoes a doubled gain, but for the output's units."""
    plain = network_of("mixture, predicting, amplified")
    config = dataclasses.replace(plain.config, input_gain=2 * plain.config.input_gain)
    double = WaveNet(config)
    for to, value in zip(double.trainable_variables, plain.trainable_variables, strict=True):
        to.assign(value)
    double.front_kernel.assign(plain.front_kernel / 2)
    inputs = plain.inputs(tf.constant(levels_of(plain, 1, 40)))
    k = config.components
    one, two = plain(inputs).numpy(), double(inputs).numpy()
    np.testing.assert_allclose(two[..., 2 * k :], one[..., 2 * k :] - np.log(2.0), atol=1e-5)
    predicted = tf.nn.conv1d(
        tf.pad(inputs, [[0, 0], [5, 0]])[:, :-1, None], plain.prediction_kernel[:, None, None], 1,
        "VALID",
    )  # fmt: skip
    np.testing.assert_allclose(
        two[..., k : 2 * k] - predicted, (one[..., k : 2 * k] - predicted) / 2, atol=1e-5
    )


def test_initial_upsampling_interpolates_between_frame_centres():
    network = network_of("gaussian, frames")
    factor, channels = 4, network.config.condition_channels
    fresh = WaveNet(network.config).upsampler.kernels[0]
    ramp = tf.repeat(tf.range(6, dtype=tf.float32)[None, :, None], channels, 2)
    out = upsample(ramp, fresh, factor)[0, :, 0].numpy()
    centres = (np.arange(24) + 0.5) / factor - 0.5
    np.testing.assert_allclose(out, np.clip(centres, 0, 5), atol=1e-6)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("kind", ["mixture", "mixture, context", "gaussian, frames", WINDOWS])
def test_log_prob_in_windows_equals_log_prob_of_the_whole(kind):
    network = network_of(kind)
    levels = levels_of(network, 1, 300)[0]
    frames = None
    if network.config.feature_channels:
        frames = np.random.default_rng(0).normal(size=(19, 7)).astype(np.float32)
    whole = Density(network, 1024).log_prob(levels, frames)
    parts = Density(network, 64).log_prob(levels, frames)
    np.testing.assert_allclose(parts, whole, atol=1e-4)


def test_bfloat16_stays_near_float32():
    network = network_of("mixture")
    narrow = WaveNet(dataclasses.replace(network.config, compute_dtype="bfloat16"))
    for to, value in zip(narrow.trainable_variables, network.trainable_variables, strict=True):
        to.assign(value)
    levels = tf.constant(levels_of(network, 2, 64))
    inputs = network.inputs(levels)
    one, other = network(inputs), narrow(inputs)
    assert other.dtype == tf.float32
    assert 0 < np.abs(one - other).max() < 0.2


PLAIN = [
    ("layers", 7, "`layers` must be a multiple of `stacks`, got 7."),
    ("filter_width", 4, "`filter_width` must be 2 or 3, got 4."),
    ("residual_channels", 0, "`residual_channels` must be at least 1, got 0."),
    ("input_gain", 0.0, "`input_gain` must be above 0, got 0.0."),
    ("levels", 1, "`levels` must be between 2 and"),
    ("prediction_order", 4, "`prediction_windows` must be given together with"),
    ("prediction_windows", (32,), "`prediction_windows` must be given together with"),
]
FOLLOWING = [
    ("prediction_windows", (5,), "must be longer than `prediction_order`"),
    ("prediction_block", 0, "`prediction_block` must be at least 1"),
    ("front_width", 20, "`front_width` must be at most 19"),
    ("input_gain", 2.0, "`input_gain` must be 1 with `prediction_windows`"),
    ("linear_prediction", True, "`linear_prediction` must be False with"),
    ("context_layers", 2, "`context_layers` must be 0 with"),
    ("conditioner_units", 8, "`prediction_windows` must be"),
]


@pytest.mark.parametrize(
    ("given", "field", "value", "rule"),
    [*((SMALL, *row) for row in PLAIN), *((SMALL | ADAPTIVE, *row) for row in FOLLOWING)],
)
def test_impossible_networks_are_refused_by_name(given, field, value, rule):
    with pytest.raises(ValueError, match=rule):
        WaveNetConfig(**(given | {field: value}))


def test_missing_and_misshapen_conditions_are_refused():
    network, frames = network_of("gaussian, frames"), tf.zeros([1, 4, 7])
    with pytest.raises(ValueError, match=r"must be a dict with frames: float32 .*, got none"):
        network.condition()
    with pytest.raises(ValueError, match=r"`condition` must be given, \(None, None, 7\), got"):
        network.condition(tf.zeros([1, 4, 6]))
    with pytest.raises(ValueError, match="got frames, speaker"):
        network.condition(frames, tf.zeros([1], tf.int32))
    spoken = network_of("softmax, speakers")
    with pytest.raises(ValueError, match=r"`condition` must be 0 to 2, .* got 3"):
        spoken.condition(speaker=tf.constant([3]), num_samples=4)


def test_paper_teacher_has_the_papers_receptive_field():
    assert WaveNetConfig(layers=30, stacks=3, filter_width=3).receptive_field == 6139
    assert WaveNetConfig(layers=10, stacks=1, filter_width=2).receptive_field == 1024
