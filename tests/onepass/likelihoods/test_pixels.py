"""The mixture over a whole colour: exact, ordered R, G, B, and drawn as it says."""

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf
from scipy import special

from onepass.likelihoods import PixelMixture

COLOURS = np.array(list(itertools.product(range(4), repeat=3)), np.int32)
SMALL = PixelMixture(levels=4, channels=3, components=3)
# Rows of the parameters, `components` each.
LOGITS, MEANS, LOG_SCALES, COEFFICIENTS = slice(0, 1), slice(1, 4), slice(4, 7), slice(7, 10)


def example(mixture=SMALL, seed=0):
    """float32 [parameters] that spread over several levels, with components that overlap."""
    draws = np.random.default_rng(seed)
    size = (mixture.channels, mixture.components)
    pairs = mixture.num_parameters // mixture.components - 1 - 2 * mixture.channels
    rows = [
        draws.normal(size=(1, mixture.components)),
        draws.uniform(-0.9, 0.9, size),
        draws.uniform(-2.5, -0.5, size),
        draws.normal(size=(pairs, mixture.components)),
    ]
    return np.concatenate(rows).astype(np.float32).ravel()


def log_probs(parameters, mixture=SMALL, levels=COLOURS):
    wide = tf.broadcast_to(parameters, [len(levels), mixture.num_parameters])
    return mixture.log_prob(wide, tf.constant(levels))


def reference(parameters, mixture=SMALL, levels=COLOURS):
    """float64 [...], the probability of colours, straight from the formula."""
    rows = parameters.astype(np.float64).reshape(-1, mixture.components)
    half = 1 / (mixture.levels - 1)
    value = 2 * half * levels[..., np.newaxis] - 1
    a, b, c = np.tanh(rows[COEFFICIENTS])
    red, green = value[:, 0], value[:, 1]
    moves = [0, a * red, b * red + c * green]
    joint = special.softmax(rows[0])
    for channel, move in enumerate(moves):
        from_mean = value[:, channel] - rows[1 + channel] - move
        scale = np.exp(rows[4 + channel])
        top, bottom = levels[:, [channel]] == mixture.levels - 1, levels[:, [channel]] == 0
        upper = np.where(top, np.inf, (from_mean + half) / scale)
        lower = np.where(bottom, -np.inf, (from_mean - half) / scale)
        joint = joint * (special.expit(upper) - special.expit(lower))
    return joint.sum(1)


@pytest.mark.parametrize("seed", range(3))
def test_probabilities_of_all_colours_sum_to_one(seed):
    for spread in (1.0, 5.0):
        probabilities = np.exp(log_probs(spread * example(seed=seed)))
        assert probabilities.sum() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_log_prob_follows_the_formula(seed):
    parameters = example(seed=seed)
    np.testing.assert_allclose(np.exp(log_probs(parameters)), reference(parameters), rtol=2e-5)


def test_a_channel_owes_nothing_to_the_parameters_of_those_after_it():
    parameters = tf.Variable(example())
    with tf.GradientTape(persistent=True) as tape:
        joint = tf.reshape(log_probs(parameters), [4, 4, 4])
        marginals = [tf.reduce_logsumexp(joint, [1, 2]), tf.reduce_logsumexp(joint, 2)]
        marginals.append(joint[1:3, 1:3, 1:3])  # some, since all parameters are read
    gradients = []
    for marginal in marginals:
        jacobian = tape.jacobian(marginal, parameters, experimental_use_pfor=False).numpy()
        gradients.append(np.abs(jacobian.reshape(-1, 10, SMALL.components)).max(0).min(1))
    # Rows: logits, means R G B, log-scales R G B, coefficients of R in G, R in B, G in B.
    reads = [gradient > 1e-3 for gradient in gradients]
    np.testing.assert_array_equal(reads[0], [1, 1, 0, 0, 1, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(reads[1], [1, 1, 1, 0, 1, 1, 0, 1, 0, 0])
    np.testing.assert_array_equal(reads[2], np.ones(10))
    for read, gradient in zip(reads, gradients, strict=True):
        assert gradient[~read].max(initial=0) < 1e-6


@pytest.mark.parametrize(
    ("coefficient", "bound"), [(0, {(0, 1)}), (1, {(0, 2)}), (2, {(1, 2)})], ids=["RG", "RB", "GB"]
)
def test_a_coefficient_binds_its_two_channels(coefficient, bound):
    single = PixelMixture(levels=4, channels=3, components=1)
    parameters = example(single)
    parameters[7:] = 0
    parameters[7 + coefficient] = 1.5
    joint = np.exp(log_probs(parameters, single)).reshape(4, 4, 4)
    dependent = set()
    for pair in [(0, 1), (0, 2), (1, 2)]:
        other = ({0, 1, 2} - set(pair)).pop()
        both = joint.sum(other)
        apart = np.outer(both.sum(1), both.sum(0))
        if np.abs(both - apart).max() > 1e-3:
            dependent.add(pair)
    assert dependent == bound


def test_moving_shifts_the_means_alone_each_channel_by_its_own():
    parameters, offset = example(), np.array([0.3, -0.2, 0.1], np.float32)
    rows = parameters.reshape(10, 3).copy()
    rows[MEANS] += offset[:, np.newaxis]
    moved = SMALL.shift_means(tf.constant(parameters), tf.constant(offset))
    np.testing.assert_array_equal(moved, rows.ravel())
    np.testing.assert_allclose(np.exp(log_probs(moved)), reference(rows.ravel()), rtol=2e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_colours_are_drawn_as_often_as_log_prob_says(temperature):
    count = 60_000
    parameters = example(seed=4)
    rows = parameters.reshape(10, 3).copy()
    rows[LOGITS] /= temperature
    rows[LOG_SCALES] += np.log(temperature)
    noise = SMALL.noise(7, [3], 0, count)[0]
    wide = tf.broadcast_to(parameters, [count, SMALL.num_parameters])
    drawn = SMALL.sample(wide, noise, temperature).numpy()
    numbers = np.bincount(drawn @ [16, 4, 1], minlength=64)
    expected = count * reference(rows.ravel())
    likely = expected > 5
    distance = np.square(numbers - expected)[likely] / expected[likely]
    assert distance.sum() < likely.sum() + 4 * np.sqrt(2 * likely.sum())


def test_a_pixel_is_the_colour_of_the_component_that_its_uniform_takes():
    mixture = PixelMixture(levels=256, channels=3, components=2)
    rows = np.zeros([10, 2], np.float32)
    rows[LOGITS] = [[0.0, np.log(3)]]
    rows[MEANS] = [[-0.2, 0.2], [-0.4, 0.4], [-0.6, 0.6]]
    rows[LOG_SCALES] = -6.0
    rows[COEFFICIENTS] = [[1.0, -1.0], [0.0, 0.5], [-0.5, 0.0]]
    noise = tf.constant([[0.2, 0.0, 0.0, 0.0], [0.3, 0.0, 0.0, 0.0]])
    drawn = mixture.sample(tf.constant([rows.ravel()] * 2), noise).numpy()
    a, b, c = np.tanh(rows[COEFFICIENTS])
    red, green, blue = rows[MEANS]
    green, blue = green + a * red, blue + b * red + c * (green + a * red)
    expected = np.stack([red, green, blue], -1)
    np.testing.assert_allclose(drawn * 2 / 255 - 1, expected, atol=2 / 255)


def test_scales_below_the_floor_count_as_the_floor():
    mixture = dataclasses.replace(SMALL, min_log_scale=-2.0)
    rows = example().reshape(10, 3).copy()
    rows[LOG_SCALES] = -9.0
    low = log_probs(rows.ravel(), mixture).numpy()
    rows[LOG_SCALES] = -2.0
    np.testing.assert_array_equal(low, log_probs(rows.ravel(), mixture))
    rows[LOG_SCALES] = -1.9
    assert not np.allclose(low, log_probs(rows.ravel(), mixture), atol=1e-3)


def test_noise_of_a_chunk_is_a_chunk_of_the_noise_and_no_channel_repeats_another():
    whole = SMALL.noise(11, [0, 5], 0, 400).numpy()
    np.testing.assert_array_equal(SMALL.noise(11, [5], 150, 40)[0], whole[1, 150:190])
    assert len(np.unique(whole)) == whole.size
    correlation = np.corrcoef(whole.reshape(-1, 4).T) - np.eye(4)
    assert np.abs(correlation).max() < 0.15


def test_a_compiler_changes_neither_samples_nor_log_prob():
    parameters = tf.constant(np.stack([example(seed=seed) for seed in range(200)]))
    noise = SMALL.noise(1, [0], 0, 200)[0]

    def both(parameters, noise):
        drawn = SMALL.sample(parameters, noise)
        return drawn, SMALL.log_prob(parameters, drawn)

    drawn, nats = both(parameters, noise)
    compiled, compiled_nats = tf.function(both, jit_compile=True)(parameters, noise)
    np.testing.assert_array_equal(drawn, compiled)
    np.testing.assert_allclose(nats, compiled_nats, atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"channels": 2}, "`channels` must be 1 or 3, got 2."),
        ({"components": 0}, "`components` must be at least 1, got 0."),
        ({"levels": 1}, "`levels` must be between 2 and 4194304, got 1."),
    ],
)
def test_senseless_mixtures_are_refused(fields, rule):
    with pytest.raises(ValueError, match=rule):
        PixelMixture(**fields)
