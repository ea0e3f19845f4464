import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from marks import some_slow
from scipy import special

from onepass.likelihoods import (
    Categorical,
    Gaussian,
    GaussianMixture,
    Linear,
    LogisticMixture,
    bits_per_sample,
)
from onepass.likelihoods.codec import sample_categorical

EVERY = [LogisticMixture, Categorical, Gaussian, GaussianMixture]
CONTINUOUS = [LogisticMixture, Gaussian, GaussianMixture]
MIXTURES = [LogisticMixture, GaussianMixture]
# Eighths are exact in float32 in half bins too, so a reference may be held to the last digits.
MEANS = [0.0, 0.625, -1.0, -0.125, 1.5]


def single(likelihood, mean, log_scale):
    zero_logit = [0.0] if type(likelihood) in MIXTURES else []
    return np.array([*zero_logit, mean, log_scale], np.float32)


def of(kind, levels):
    return kind(levels, components=1) if kind in MIXTURES else kind(levels)


def example(likelihood, seed=0):
    """Parameters [P] that spread over several levels, with components that overlap."""
    generator = np.random.default_rng(seed)
    if isinstance(likelihood, Categorical):
        return generator.normal(0, 1.5, likelihood.levels).astype(np.float32)
    if isinstance(likelihood, Gaussian):
        return np.array([0.2, -0.9], np.float32)
    count = likelihood.components
    means, log_scales = generator.uniform(-0.9, 0.9, count), generator.uniform(-3, -1, count)
    return np.concatenate([generator.normal(size=count), means, log_scales]).astype(np.float32)


def log_probs(likelihood, parameters):
    """float64 [..., levels], log-probability of every level under parameters [..., P]."""
    levels = np.arange(likelihood.levels, dtype=np.int32)
    shape = (*parameters.shape[:-1], likelihood.levels)
    repeated = np.broadcast_to(parameters[..., None, :], (*shape, parameters.shape[-1]))
    answer = likelihood.log_prob(repeated, np.broadcast_to(levels, shape))
    return answer.numpy().astype(np.float64)


def reference(kind, num_levels, mean, log_scale, levels):
    """float64 [...] log of a difference of tails, the bin mirrored to where both are small."""
    tail = special.expit if kind is LogisticMixture else special.ndtr
    value = 2 * np.asarray(levels, float) / (num_levels - 1) - 1
    low = (value - 1 / (num_levels - 1) - mean) / np.exp(log_scale)
    high = (value + 1 / (num_levels - 1) - mean) / np.exp(log_scale)
    low, high = (
        np.where(levels == 0, -np.inf, low),
        np.where(levels == num_levels - 1, np.inf, high),
    )
    near = np.where(low + high > 0, low, -high)
    far = np.where(low + high > 0, high, -low)
    with np.errstate(divide="ignore"):
        return np.log(tail(-near) - tail(-far))


def same_draws(first, second):
    difference = np.abs(np.asarray(first, int) - np.asarray(second, int))
    return difference.max() <= 1 and np.mean(difference != 0) < 0.005


def compiled_program(method, parameters, argument):
    function = tf.function(lambda first, second: method(first, second), jit_compile=True)
    return function.experimental_get_compiler_ir(parameters, argument)(stage="hlo")


@pytest.mark.parametrize("levels", [2, 256, 65536])
@pytest.mark.parametrize("kind", CONTINUOUS)
def test_probabilities_sum_to_one_at_every_scale_and_mean(kind, levels):
    likelihood = of(kind, levels)
    scales = [-9, -7, -4, -1, 0, 2] if levels == 65536 else np.arange(-9, 2.01, 0.5)
    for mean in [0.0, 0.3217, -1.0, 0.999999, -1.7]:
        parameters = np.stack([single(likelihood, mean, scale) for scale in scales])
        total = np.exp(log_probs(likelihood, parameters)).sum(-1)
        np.testing.assert_allclose(total, 1.0, atol=1e-4)


@pytest.mark.parametrize("levels", [2, 256, 65536])
@pytest.mark.parametrize("kind", CONTINUOUS)
def test_log_prob_agrees_with_float64(kind, levels):
    likelihood = of(kind, levels)
    scales = [-9, -6, -4.5, -2, -1, -0.25, 0, 2]
    for mean in MEANS:
        answers = log_probs(likelihood, np.stack([single(likelihood, mean, s) for s in scales]))
        for answer, log_scale in zip(answers, scales, strict=True):
            expected = reference(kind, levels, mean, log_scale, np.arange(levels))
            known = expected > -500  # below, the tails of the reference vanish
            np.testing.assert_allclose(answer[known], expected[known], rtol=3e-6, atol=2e-5)


def test_a_mixture_is_the_weighted_sum_of_its_components():
    mixture = LogisticMixture(256, components=4)
    parameters = example(mixture).astype(float)
    weights = special.softmax(parameters[:4])
    levels = np.arange(256)
    parts = [
        weight * np.exp(reference(LogisticMixture, 256, mean, log_scale, levels))
        for weight, mean, log_scale in zip(weights, parameters[4:8], parameters[8:], strict=True)
    ]
    answer = log_probs(mixture, parameters.astype(np.float32))
    np.testing.assert_allclose(answer, np.log(np.sum(parts, axis=0)), rtol=1e-5, atol=1e-5)


def test_categorical_log_prob_is_the_log_softmax():
    softmax = Categorical(16)
    logits = example(softmax) * 20
    answer = log_probs(softmax, logits)
    np.testing.assert_allclose(answer, special.log_softmax(logits.astype(float)), 1e-6, 1e-6)


@pytest.mark.parametrize("levels", [2, 256, 65536])
@pytest.mark.parametrize("kind", CONTINUOUS)
def test_values_and_gradients_are_finite_everywhere(kind, levels):
    likelihood = of(kind, levels)
    means = [-1e3, -1.5, -1, -1e-3, 0, 0.37, 1, 1.5, 1e3]
    parameters = tf.constant(
        [
            [single(likelihood, mean, log_scale) for mean in means]
            for log_scale in [-30, -16, -12, -9, -4, 0, 2, 40, 120]
        ]
    )
    for level in {0, 1, levels // 2, levels - 2, levels - 1}:
        with tf.GradientTape() as tape:
            tape.watch(parameters)
            log_prob = likelihood.log_prob(parameters, tf.fill(parameters.shape[:-1], level))
        assert np.all(np.isfinite(log_prob))
        assert np.all(np.isfinite(tape.gradient(log_prob, parameters)))
        assert np.all(log_prob <= 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("levels", [2, 256])
@pytest.mark.parametrize("kind", CONTINUOUS)
def test_gradients_agree_with_differences_in_float64(kind, levels):
    likelihood = of(kind, levels)
    grid = np.arange(levels)
    step = 1e-5
    for mean in MEANS:
        for log_scale in [-4.5, -3, -1.5, 0, 1]:
            parameters = tf.constant(np.tile(single(likelihood, mean, log_scale), (levels, 1)))
            with tf.GradientTape() as tape:
                tape.watch(parameters)
                log_prob = likelihood.log_prob(parameters, tf.constant(grid, tf.int32))
            gradient = tape.gradient(log_prob, parameters).numpy()[:, -2:]
            known = reference(kind, levels, mean, log_scale, grid) > -100
            for channel, (right, left) in enumerate(
                [
                    ((mean + step, log_scale), (mean - step, log_scale)),
                    ((mean, log_scale + step), (mean, log_scale - step)),
                ]
            ):
                up, down = (reference(kind, levels, *at, grid) for at in (right, left))
                slope = (up[known] - down[known]) / (2 * step)
                np.testing.assert_allclose(gradient[known, channel], slope, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("kind", CONTINUOUS)
def test_scales_below_the_floor_count_as_the_floor(kind):
    likelihood = dataclasses.replace(of(kind, 256), min_log_scale=-5.0)
    floor, below = (log_probs(likelihood, single(likelihood, 0.3, s)) for s in (-5.0, -50.0))
    np.testing.assert_array_equal(below, floor)
    assert not np.allclose(log_probs(likelihood, single(likelihood, 0.3, -4.9)), floor)
    noise = np.full([likelihood.noise_channels], 0.999, np.float32)
    levels = [likelihood.sample(single(likelihood, 0.3, s), noise) for s in (-5.0, -50.0)]
    assert levels[0] == levels[1]


def test_a_sample_is_the_first_component_the_uniform_stays_below():
    mixture = LogisticMixture(256, components=3)
    parameters = np.array([*np.log([0.25, 0.5, 0.25]), -0.5, 0.0, 0.5, -20, -20, -20], np.float32)
    uniforms = np.array([1e-7, 0.2499, 0.2501, 0.7499, 0.7501, 1 - 2.0**-24], np.float32)
    noise = np.stack([uniforms, np.zeros(6, np.float32)], -1)
    levels = mixture.sample(np.tile(parameters, (6, 1)), noise)
    expected = Linear(256).encode([-0.5, -0.5, 0.0, 0.0, 0.5, 0.5])
    np.testing.assert_array_equal(levels, expected)


@pytest.mark.parametrize("kind", EVERY)
def test_mode_is_the_most_probable_level(kind):
    likelihood = of(kind, 256)
    if kind is Categorical:
        parameters = np.stack([example(likelihood, seed) for seed in range(20)])
    else:
        pairs = [(0.1, -4), (-0.73, -3), (0.52, -9), (0.98, -6), (2.0, -3), (-7.0, -8)]
        parameters = np.stack([single(likelihood, *pair) for pair in pairs])
    np.testing.assert_array_equal(
        likelihood.mode(parameters), log_probs(likelihood, parameters).argmax(-1)
    )


def test_mode_of_a_mixture_weighs_the_height_of_each_peak():
    mixture = LogisticMixture(256, components=2)
    broad_and_heavy, sharp_and_light = [1.0, -0.3, -2.0], [0.0, 0.5, -4.0]
    parameters = np.stack([broad_and_heavy, sharp_and_light], -1).reshape(-1).astype(np.float32)
    assert mixture.mode(parameters) == Linear(256).encode(0.5)
    assert mixture.mode(parameters) == log_probs(mixture, parameters).argmax()


@pytest.mark.parametrize("kind", EVERY)
def test_every_draw_may_have_a_temperature_of_its_own(kind):
    likelihood = kind(256)
    parameters = np.tile(example(likelihood), (60, 1))
    noise, heats = likelihood.noise(3, [0], 0, 60)[0], np.linspace(0, 2, 60, dtype=np.float32)
    together = likelihood.sample(parameters, noise, heats)
    alone = [likelihood.sample(*each) for each in zip(parameters, noise, heats, strict=True)]
    np.testing.assert_array_equal(together, alone)
    assert len(np.unique(together)) > 5


@pytest.mark.parametrize("kind", some_slow(MIXTURES, [GaussianMixture]))
def test_a_compiler_changes_neither_samples_nor_log_prob_of_many_levels(kind):
    likelihood = kind(65536)
    count = 10_000
    parameters = tf.constant(np.tile(example(likelihood), (count, 1)))
    noise = likelihood.noise(8, [0], 0, count)[0]
    eager = likelihood.sample(parameters, noise, 0.9)
    xla = tf.function(likelihood.sample, jit_compile=True)(parameters, noise, tf.constant(0.9))
    assert same_draws(eager, xla)
    compiled = tf.function(likelihood.log_prob, jit_compile=True)(parameters, eager)
    np.testing.assert_allclose(likelihood.log_prob(parameters, eager), compiled, rtol=2e-5)


@pytest.mark.parametrize("kind", EVERY)
def test_log_prob_and_sample_compile_to_portable_operations(kind):
    likelihood = kind(256)
    parameters = tf.zeros([4, likelihood.num_parameters])
    noise, levels = tf.zeros([4, likelihood.noise_channels]), tf.zeros([4], tf.int32)
    for method, argument in ((likelihood.log_prob, levels), (likelihood.sample, noise)):
        program = compiled_program(method, parameters, argument)
        assert "ROOT" in program
        assert "custom-call" not in program
        assert " erf(" not in program


@pytest.mark.parametrize("kind", CONTINUOUS)
def test_log_prob_at_the_narrowest_scale_agrees_with_float64(kind):
    """Means anywhere within a bin of 2^16, where a scale is 1/136 of half a bin."""
    likelihood, draws = of(kind, 65536), np.random.default_rng(2)
    means = draws.uniform(-1, 1, 4000).astype(np.float32)
    levels = Linear(65536).encode(means)
    parameters = np.stack([single(likelihood, mean, -16.0) for mean in means])
    found = likelihood.log_prob(parameters, levels)
    expected = reference(kind, 65536, means.astype(float), -16.0, levels.numpy())
    np.testing.assert_allclose(found, expected, atol=8e-3)
    assert np.min(expected) < -0.5


def test_the_density_of_a_logistic_is_smoothed_over_a_bin():
    """At a level it is the mass over the width; its integral over a bin is not the mass."""
    mixture, width = LogisticMixture(256, 1), 2 / 255
    parameters, centre = np.array([0.0, 1 / 255, -7.0], np.float32), 128
    value = np.float32(1 / 255)
    mass = np.exp(log_probs(mixture, parameters)[centre])
    at = np.exp(mixture.log_density(parameters, tf.constant(value)))
    assert at * width == pytest.approx(mass, rel=1e-4)
    inside = value + width * (np.arange(1000, dtype=np.float32) / 1000 - 0.4995)
    density = np.exp(mixture.log_density(np.tile(parameters, (1000, 1)), inside))
    assert mass == pytest.approx(0.973, abs=1e-3)
    assert np.mean(density) * width == pytest.approx(0.839, abs=1e-3)


def test_a_uniform_near_one_draws_no_level_that_has_no_probability():
    """A float32 sum of 65,536 probabilities falls short of 1, by more than a uniform can."""
    logits = np.full(65536, 0.0, np.float32)
    logits[60000:] = -200.0
    uniform = np.full(1, 1 - 2.0**-24, np.float32)
    assert sample_categorical(tf.constant([logits]), uniform) < 60000


def test_temperature_zero_takes_the_larger_of_near_equal_logits():
    logits = np.array([[0.0, 3e-7, 0.0], [1.0, 1.0 - 1e-6, -1.0]], np.float32)
    for uniform in (1e-6, 0.5, 1 - 2.0**-24):
        drawn = sample_categorical(tf.constant(logits), tf.constant([uniform] * 2), 0.0)
        np.testing.assert_array_equal(drawn, [1, 0])


def test_sixteen_flat_levels_cost_four_bits():
    softmax = Categorical(16)
    log_prob = softmax.log_prob(tf.zeros([10, 16]), tf.range(10))
    assert float(bits_per_sample(log_prob)) == pytest.approx(4.0, rel=1e-6)


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("levels", [1, 0, -5, 2**22 + 1])
def test_a_senseless_number_of_levels_is_refused(kind, levels):
    most = 2**20 if kind is Categorical else 2**22
    with pytest.raises(ValueError, match=f"`levels` must be between 2 and {most}, got {levels}"):
        kind(levels)


def test_a_mixture_of_nothing_is_refused():
    with pytest.raises(ValueError, match="`components` must be at least 1, got 0"):
        LogisticMixture(components=0)
