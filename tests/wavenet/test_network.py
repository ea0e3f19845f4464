"""The laws of the network: what depends on what, and on how much."""

import dataclasses
import functools

import numpy as np
import pytest
import scipy.linalg
import tensorflow as tf
import vocoders
from networks import ADAPTIVE, KINDS, SMALL, WINDOWS, levels_of
from vocoders import condition_for, frames_of

from onepass.bundles.trained_functions import streaming_model
from onepass.foundation.rules import UserError
from onepass.likelihoods.noise import Initial
from wavenet.conditioner import PitchReader, pitch_loss, train_pitch_reader
from wavenet.config import WaveNetConfig
from wavenet.data.batch_sampling import ClipSource
from wavenet.density import Density
from wavenet.linear_prediction import (
    PAST_FLOOR,
    PAST_WHITE_NOISE,
    PastPrediction,
    weights_of,
)
from wavenet.network import WaveNet, upsample
from wavenet.samplers.symbols import autoregressive

FLOAT_KINDS = [kind for kind in KINDS if "softmax" not in kind]
SAMPLES, AT = 96, 70
VOCODERS = vocoders.SOME_SLOW


@functools.cache
def network_of(kind):
    """A network that nobody changes."""
    precise = {"compute_dtype": "float64"} if kind in vocoders.KINDS else {}
    return vocoders.network_for(kind, **precise)


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
    condition = condition_for(network, 1, SAMPLES)
    before = network(tf.constant(levels), condition)
    after = network(tf.constant(changed), condition)
    np.testing.assert_array_equal(before[:, : AT + 1], after[:, : AT + 1])
    assert np.abs(before[:, AT + 1] - after[:, AT + 1]).max() > 0


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
    ("input_gain", 0.0, "`input_gain` must be above 0 and finite, got 0.0."),
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


# Vocoders


SPOKEN = 240


@functools.cache
def vocoder_of(kind, **changes):
    """A network that nobody changes."""
    return vocoders.vocoder_of(kind, **changes)


@functools.cache
def parts(kind, batch=1, samples=SPOKEN):
    network = vocoder_of(kind, compute_dtype="float64")
    frames = frames_of(network, batch, samples)
    return network, levels_of(network, batch, samples), network.condition(frames)


@pytest.mark.parametrize("kind", VOCODERS)
def test_probabilities_of_all_levels_sum_to_one(kind):
    network = vocoder_of(kind, levels=32)
    levels = levels_of(network, 1, SPOKEN)
    parameters = network(network.inputs(levels), network.condition(frames_of(network, 1, SPOKEN)))
    every = tf.stack(
        [network.likelihood.log_prob(parameters, tf.fill(levels.shape, k)) for k in range(32)]
    )
    np.testing.assert_allclose(tf.reduce_sum(tf.exp(every), 0), 1.0, rtol=2e-5)


@pytest.mark.parametrize("kind", VOCODERS)
def test_a_condition_by_rows_equals_one_by_samples(kind):
    network, levels, condition = parts(kind, batch=2)
    inputs = network.inputs(levels)
    rows = network.rows(frames_of(network, 2, SPOKEN))
    by_rows = network(inputs, rows, network.row_samples)
    np.testing.assert_allclose(by_rows, network(inputs, condition), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", VOCODERS)
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


@pytest.mark.parametrize("kind", VOCODERS)
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


@pytest.mark.parametrize("bins", [0, 60])
def test_reader_learns_f0_and_voicing_of_synthetic_frames(bins):
    generator = np.random.default_rng(0)
    octaves = generator.uniform(-1.0, 1.0, 3000).astype(np.float32)
    voiced = (generator.random(3000) < 0.6).astype(np.float32)
    place = (octaves * 5 + 10)[:, None] - np.arange(20)
    frames = voiced[:, None] * np.exp(-0.5 * place**2).astype(np.float32)
    rows = np.concatenate([frames, octaves[:, None], voiced[:, None]], 1)
    source = ClipSource(
        [np.zeros(3000, np.int16)], [0], 50, frames=[rows], padding=rows[0] * 0, hop_samples=1
    )
    reader = PitchReader(20, Initial(0), bins=bins)
    side = reader.side_frames
    inner = slice(side, -side)
    before = float(pitch_loss(*reader(frames[None]), rows[None, inner, -2:]))
    train_pitch_reader(reader, source, 150, 0, lambda frames: frames[..., :20])
    assert float(pitch_loss(*reader(frames[None]), rows[None, inner, -2:])) < 0.1 * before
    read, logit = (value.numpy()[0] for value in reader(tf.constant(frames[None])))
    assert np.mean((logit > 0.0) == voiced[inner]) > 0.97
    off = np.abs(read - octaves[inner])[voiced[inner] == 1]
    assert np.median(off) < 0.1


# Predictions that follow the sound: solved from its past alone, and finite for any sound


BLOCK = ADAPTIVE["prediction_block"]


def test_coefficients_solve_the_normal_equations_of_each_window():
    order, windows = 6, (40, 25)
    past = np.random.default_rng(0).normal(size=50).cumsum()
    solved = PastPrediction(order, windows)(tf.constant(past)).numpy()
    for row, window in zip(solved, windows, strict=True):
        part = past[-window:] * weights_of(window)
        lags = np.array([part[k:] @ part[: window - k] for k in range(order + 1)])
        lags[0] += PAST_WHITE_NOISE * lags[0] + PAST_FLOOR**2
        expected = scipy.linalg.solve_toeplitz(lags[:-1], lags[1:])
        np.testing.assert_allclose(row[:order], expected, rtol=1e-7)
        error = lags[0] - expected @ lags[1:]
        np.testing.assert_allclose(np.exp(2 * row[order:]), [error, lags[0]], rtol=1e-7)


def test_a_sample_is_read_until_its_window_has_passed_and_not_before_it():
    network = network_of(WINDOWS)
    levels = levels_of(network, 1, 160)
    changed = levels.copy()
    changed[0, 60] += 9000
    one, other = (network(network.inputs(tf.constant(x))).numpy()[0] for x in (levels, changed))
    differs = np.abs(one - other).max(-1) > 0
    reach = network.config.receptive_field
    assert reach == 2 * 3 + max(ADAPTIVE["prediction_windows"]) + BLOCK - 1
    assert not differs[:61].any()
    assert differs[61 : 60 + max(ADAPTIVE["prediction_windows"])].all()
    assert not differs[60 + reach + 1 :].any()


@pytest.mark.parametrize(
    "wave",
    [
        np.zeros(200),
        np.full(200, 32767),
        np.full(200, -32768),
        np.tile([32767, -32768], 100),
        np.where(np.arange(200) == 100, 32767, 0),
        np.sign(np.sin(0.1 * np.arange(200))) * 32767,
    ],
    ids=["silence", "highest", "lowest", "alternating", "click", "clipped"],
)
def test_parameters_are_finite_for_every_sound(wave):
    network = network_of(WINDOWS)
    levels = tf.constant(wave.astype(np.int32)[None] + 32768)
    parameters = network(network.inputs(levels))
    assert np.isfinite(parameters).all()
    assert np.isfinite(network.likelihood.log_prob(parameters, levels)).all()


def test_a_bundle_refuses_it_in_one_line():
    with pytest.raises(UserError, match="A bundle streams the sound of"):
        streaming_model(network_of(WINDOWS))


@pytest.mark.parametrize("name", ["sample", "stream", "log_prob"])
def test_narrow_weights_are_refused_as_predictions_are_solved_between_steps(name):
    model = autoregressive(network_of(WINDOWS))
    given = [np.zeros([1, 9])] if name == "log_prob" else [1, 9]
    with pytest.raises(UserError, match=r"^`weights` must be float32 for predictions that are "):
        getattr(model, name)(*given, weights="int8")
