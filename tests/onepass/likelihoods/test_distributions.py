"""The laws of every distribution, those that users write among them."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from scipy import special, stats

from onepass.likelihoods import (
    Bernoulli,
    Categorical,
    Distribution,
    FromTFP,
    Gaussian,
    GaussianMixture,
    LogisticMixture,
    PixelMixture,
    Tabulated,
)
from onepass.likelihoods import noise as counter_noise
from onepass.likelihoods.distribution import HasEntropy, with_density

LEVELS, DRAWS = 9, 60_000


@dataclasses.dataclass(frozen=True)
class Binomial(Tabulated):
    """A user's distribution of counts: the trials that succeed, of `levels - 1`."""

    levels: int = LEVELS
    num_parameters: int = 1

    def log_prob(self, parameters, symbols):
        trials, k = self.levels - 1.0, tf.cast(symbols, tf.float32)
        ways = tf.math.lgamma(trials + 1) - tf.math.lgamma(k + 1) - tf.math.lgamma(trials - k + 1)
        logit = parameters[..., 0]
        return ways + k * tf.math.log_sigmoid(logit) + (trials - k) * tf.math.log_sigmoid(-logit)


class Geometric:
    """Answers as a distribution of TensorFlow Probability does, cut off after the last level."""

    def __init__(self, logit):
        self._log_rest = tf.math.log_sigmoid(logit)

    def log_prob(self, value):
        last = value >= LEVELS - 1
        nats = value * self._log_rest + tf.math.log(-tf.math.expm1(self._log_rest))
        return tf.where(last, value * self._log_rest, nats)

    def quantile(self, uniform):
        passed = tf.floor(tf.math.log1p(-uniform) / self._log_rest)
        return tf.minimum(passed, LEVELS - 1.0)

    def sample(self, seed):
        return self.quantile(tf.random.stateless_uniform(tf.shape(self._log_rest), seed))

    def mode(self):
        shape = tf.shape(self._log_rest)
        return tf.where(self._log_rest < tf.math.log(0.5), tf.zeros(shape), 0.0)


class Drawn(Geometric):
    """The same without quantiles, as `tfd.Poisson` and most others over integers answer."""

    def quantile(self, uniform):
        raise NotImplementedError("quantile is not implemented: Drawn")

    def sample(self, seed):
        return super().quantile(tf.random.stateless_uniform(tf.shape(self._log_rest), seed))


class Laplace:
    """Answers as `tfd.Laplace` does."""

    def __init__(self, loc, scale):
        self.loc, self.scale = loc, scale

    def log_prob(self, value):
        return -tf.abs(value - self.loc) / self.scale - tf.math.log(2.0 * self.scale)

    def quantile(self, uniform):
        centred = uniform - 0.5
        return self.loc - self.scale * tf.sign(centred) * tf.math.log1p(-2.0 * tf.abs(centred))

    def mode(self):
        return self.loc


def geometric(parameters):
    return Geometric(parameters[..., 0])


def laplace(parameters):
    return Laplace(parameters[..., 0], tf.exp(parameters[..., 1]))


OVER_LEVELS = {
    "softmax": Categorical(LEVELS),
    "gaussian": Gaussian(LEVELS),
    "logistic mixture": LogisticMixture(LEVELS, 3),
    "gaussian mixture": GaussianMixture(LEVELS, 3),
    "binomial": Binomial(),
    "by quantile": FromTFP(geometric, 1, LEVELS),
    "by sample": FromTFP(lambda p: Drawn(p[..., 0]), 1, LEVELS),
}
OVER_REALS = {
    "gaussian": Gaussian(None),
    "logistic mixture": LogisticMixture(None, 3),
    "gaussian mixture": GaussianMixture(None, 3),
    "laplace": FromTFP(laplace, 2),
}
EVERY = {name: OVER_LEVELS[name] for name in OVER_LEVELS} | {
    f"{name}, real": of for name, of in OVER_REALS.items()
}
each = pytest.mark.parametrize("name", EVERY)


def parameters_of(distribution, seed=0):
    """float32 [parameters] that spread over several levels, with components that overlap."""
    draws = np.random.default_rng(seed)
    count = distribution.num_parameters
    if isinstance(distribution, LogisticMixture | GaussianMixture):
        spread, third = draws.uniform(-0.8, 0.8, count // 3), count // 3
        scales = draws.uniform(-2.5, -1.0, third)
        return np.concatenate([draws.normal(size=third), spread, scales]).astype(np.float32)
    if isinstance(distribution, Categorical):
        return draws.normal(0, 1.5, count).astype(np.float32)
    return np.array([0.3, -1.2], np.float32)[:count]


def drawn(distribution, count=DRAWS, temperature=1.0):
    noise = distribution.noise(7, [0], 0, count)[0]
    parameters = np.tile(parameters_of(distribution), (count, 1))
    return distribution.sample(parameters, noise, temperature).numpy()


def log_probs(distribution, symbols, parameters=None):
    """float64 [...], nats of symbols [...] under the same parameters."""
    parameters = parameters_of(distribution) if parameters is None else parameters
    wide = np.broadcast_to(parameters, (*symbols.shape, len(parameters)))
    return np.float64(distribution.log_prob(tf.constant(wide), tf.constant(symbols)))


@pytest.mark.parametrize("name", OVER_LEVELS)
def test_probabilities_sum_to_one(name):
    nats = log_probs(OVER_LEVELS[name], np.arange(LEVELS, dtype=np.int32))
    assert special.logsumexp(nats) == pytest.approx(0.0, abs=1e-4)


@pytest.mark.parametrize("name", OVER_REALS)
def test_densities_integrate_to_one(name):
    grid = np.linspace(-12, 12, 40_001, dtype=np.float32)
    total = np.sum(np.exp(log_probs(OVER_REALS[name], grid))) * (grid[1] - grid[0])
    assert total == pytest.approx(1.0, abs=2e-3)


def cooled(distribution, temperature):
    """The parameters that say at a temperature of 1 what the others say at another."""
    parameters = parameters_of(distribution)
    if isinstance(distribution, Categorical):
        return parameters / temperature
    mixed = distribution.num_parameters // 3  # of a mixture: its logits, and its log-scales
    parameters[:mixed] /= temperature
    parameters[-max(mixed, 1) :] += np.log(temperature)
    return parameters


COOLED = ("softmax", "gaussian", "logistic mixture", "gaussian mixture")


@pytest.mark.parametrize(
    ("name", "temperature"),
    [(name, 1.0) for name in OVER_LEVELS] + [(name, 0.5) for name in COOLED],
)
def test_samples_are_as_frequent_as_log_prob_says(name, temperature):
    distribution = OVER_LEVELS[name]
    count = 3000 if name == "by sample" else DRAWS
    observed = np.bincount(drawn(distribution, count, temperature), minlength=LEVELS)
    parameters = parameters_of(distribution) if temperature == 1 else cooled(distribution, 0.5)
    nats = log_probs(distribution, np.arange(LEVELS, dtype=np.int32), parameters)
    expected = count * np.exp(nats)
    likely = expected > 5
    both = observed[likely], expected[likely] * observed[likely].sum() / expected[likely].sum()
    assert stats.chisquare(*both).pvalue > 1e-3
    assert observed[~likely].sum() < 30


@pytest.mark.parametrize("name", OVER_REALS)
def test_real_samples_have_the_density(name):
    distribution = OVER_REALS[name]
    edges = np.linspace(-1.5, 1.5, 25)
    fine = np.linspace(-12, 12, 48_001, dtype=np.float32)
    below = np.cumsum(np.exp(log_probs(distribution, fine))) * (fine[1] - fine[0])
    expected = DRAWS * np.diff(np.interp(edges, fine, below))
    observed = np.histogram(drawn(distribution), edges)[0]
    likely = expected > 20
    assert likely.sum() > 5
    np.testing.assert_allclose(observed[likely], expected[likely], atol=5 * np.sqrt(expected.max()))


@each
def test_a_symbol_never_falls_where_the_last_noise_rises(name):
    distribution = EVERY[name]
    if name == "by sample":
        pytest.skip("a seed has no order")
    noise = distribution.noise(3, [0], 0, 400)[0].numpy()
    noise[:, :-1] = noise[0, :-1]
    noise = noise[np.argsort(noise[:, -1])]
    symbols = distribution.sample(np.tile(parameters_of(distribution), (400, 1)), noise).numpy()
    assert np.all(np.diff(symbols) >= 0) and symbols[0] < symbols[-1]


@pytest.mark.parametrize("name", OVER_LEVELS)
def test_mode_is_the_most_probable_level(name):
    """The mode of a mixture whose components overlap may be a level nearly as probable."""
    distribution = OVER_LEVELS[name]
    nats = log_probs(distribution, np.arange(LEVELS, dtype=np.int32))
    mode = distribution.mode(parameters_of(distribution)[None])[0]
    slack = 0.3 if "mixture" in name else 1e-5
    assert nats[int(mode)] >= nats.max() - slack


@each
def test_temperature_zero_leaves_one_symbol(name):
    distribution = EVERY[name]
    if name == "by sample":
        with pytest.raises(ValueError, match=r"^`temperature` must be 1 without a quantile"):
            drawn(distribution, 5, 0.0)
        return
    mode = distribution.mode(parameters_of(distribution)[None])
    for zero in (0.0, tf.constant(0.0)):
        symbols = np.unique(drawn(distribution, 300, zero))
        assert len(symbols) == 1
        assert symbols == mode or name == "by quantile"  # which takes the median


@each
def test_a_place_is_drawn_alone_as_in_any_batch(name):
    distribution = EVERY[name]
    parameters = np.stack([parameters_of(distribution, seed) for seed in range(6)])
    noise = distribution.noise(5, list(range(6)), 2, 1)[:, 0]
    together = distribution.sample(parameters, noise)
    nats = distribution.log_prob(parameters, together)
    for row in range(6):
        part = slice(row, row + 1)
        alone = distribution.sample(parameters[part], noise[part])
        np.testing.assert_array_equal(alone, together[part])
        np.testing.assert_allclose(
            distribution.log_prob(parameters[part], alone), nats[part], rtol=1e-6
        )
    later = distribution.noise(5, [4, 2], 2, 1)
    np.testing.assert_array_equal(later[:, 0], tf.gather(noise, [4, 2]))
    np.testing.assert_array_equal(distribution.noise(5, [4], 0, 3)[:, 2], noise[4:5])


@pytest.mark.parametrize("name", [name for name in EVERY if name != "by sample"])
def test_a_compiler_changes_nothing(name):
    distribution, count = EVERY[name], 2000
    parameters = tf.constant(np.tile(parameters_of(distribution), (count, 1)))
    noise = distribution.noise(8, [0], 0, count)[0]
    eager = distribution.sample(parameters, noise)
    compiled = tf.function(distribution.sample, jit_compile=True)(parameters, noise)
    apart = np.abs(np.float64(compiled) - np.float64(eager))
    assert np.mean(apart > 1e-4) < 0.002
    nats = tf.function(distribution.log_prob, jit_compile=True)(parameters, eager)
    expected = distribution.log_prob(parameters, eager)
    np.testing.assert_allclose(nats, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [n for n in EVERY if isinstance(EVERY[n], HasEntropy)])
def test_entropy_is_the_mean_of_minus_log_prob(name):
    distribution = EVERY[name]
    found = distribution.entropy(parameters_of(distribution)[None])[0]
    expected = -np.mean(log_probs(distribution, drawn(distribution)))
    if name == "gaussian":  # of the density, per unit of which there are half as many levels
        expected += np.log(2.0 / (LEVELS - 1))
    assert float(found) == pytest.approx(expected, abs=0.03)


def test_pixels_of_one_channel_are_a_logistic_mixture():
    pixels, mixture = PixelMixture(LEVELS, 1, 3), LogisticMixture(LEVELS, 3, -7.0)
    assert isinstance(pixels, Distribution)
    parameters = tf.constant([parameters_of(mixture)] * LEVELS)
    levels = tf.range(LEVELS)
    np.testing.assert_allclose(
        pixels.log_prob(parameters, levels[:, None]), mixture.log_prob(parameters, levels), 1e-5
    )
    assert int(pixels.mode(parameters[:1])[0, 0]) == int(mixture.mode(parameters[:1])[0])


def test_a_tabulated_distribution_without_a_log_prob_says_so():
    class Forgetful(Tabulated):
        levels, num_parameters = 3, 1

    with pytest.raises(NotImplementedError, match="`log_prob` must be written in Forgetful"):
        Forgetful().mode(tf.zeros([1, 1]))


def test_a_distribution_without_quantiles_is_recognised_and_drawn():
    tfd = pytest.importorskip("tensorflow_probability").distributions
    counts = FromTFP(lambda p: tfd.Poisson(tf.exp(p[..., 0])), 1, levels=64)
    parameters = tf.fill([4000, 1], 1.0)
    symbols = tf.function(lambda: counts.sample(parameters, counts.noise(7, [0], 0, 4000)[0]))()
    assert not counts.has_quantile and counts.noise_channels == 2
    expected = 4000 * stats.poisson(np.e).pmf(np.arange(7))
    found = np.bincount(symbols.numpy(), minlength=64)[:7]
    assert stats.chisquare(found, expected * found.sum() / expected.sum()).pvalue > 1e-3


def test_only_a_distribution_over_reals_has_a_density():
    assert with_density(FromTFP(laplace, 2)) is not None
    assert with_density(FromTFP(geometric, 1, LEVELS)) is None


def test_cumulative_probabilities_are_the_sums_of_those_of_levels():
    tfd = pytest.importorskip("tensorflow_probability").distributions
    counts = FromTFP(lambda p: tfd.Poisson(tf.exp(p[..., 0])), 1, levels=64)
    below = counts.cumulative(tf.fill([65, 1], 1.0), tf.range(65))
    each = np.exp(counts.log_prob(tf.fill([64, 1], 1.0), tf.range(64)))
    np.testing.assert_allclose(below, np.concatenate([[0.0], np.cumsum(each)]), atol=1e-6)


def test_a_distribution_without_a_cdf_has_no_cumulative_probabilities():
    assert FromTFP(geometric, 1, LEVELS).cumulative is None
    tfd = pytest.importorskip("tensorflow_probability").distributions
    trials = FromTFP(lambda p: tfd.BetaBinomial(8.0, tf.exp(p[..., 0]), 1.0), 1, LEVELS)
    assert trials.cumulative is None


def test_an_error_in_making_a_distribution_is_not_taken_for_a_missing_quantile():
    wrong = FromTFP(lambda p: p.no_such_attribute, 1)
    with pytest.raises(AttributeError, match="no_such_attribute"):
        wrong.noise(7, [0], 0, 4)


def test_a_large_vocabulary_draws_its_last_token():
    levels = 100_000
    logits = tf.one_hot([levels - 1, 3], levels, on_value=50.0)
    distribution = Categorical(levels)
    drawn = distribution.sample(logits, tf.constant([[0.5], [0.999]]))
    assert drawn.numpy().tolist() == [levels - 1, 3]
    noise = distribution.noise(1, tf.range(200), 0, 1)[:, 0]
    even = distribution.sample(tf.zeros([200, levels]), noise)
    np.testing.assert_allclose(even / levels, noise[:, 0], atol=0.02)  # sums of float32


def test_bernoulli_is_a_sigmoid():
    logits = tf.constant([[-30.0], [-1.5], [0.0], [2.0], [30.0]])
    distribution = Bernoulli()
    odds = [tf.exp(distribution.log_prob(logits, tf.fill([5], level))) for level in (0, 1)]
    np.testing.assert_allclose(odds[1], tf.sigmoid(logits[:, 0]), rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(odds[0] + odds[1], 1.0, rtol=1e-6)
    many = tf.fill([20000, 1], 0.7)
    drawn = distribution.sample(many, distribution.noise(4, tf.range(20000), 0, 1)[:, 0])
    share = 1.0 / (1.0 + np.exp(-0.7))
    assert abs(drawn.numpy().mean() - share) < 4 * np.sqrt(share * (1 - share) / 20000)
    assert distribution.mode(logits).numpy().tolist() == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0, 1.2, 2.0, 100.0, 1e30])
def test_a_quantile_is_taken_of_a_number_between_0_and_1_at_any_temperature(temperature):
    distribution = OVER_REALS["laplace"]
    words = tf.constant([0, 1 << 9, 1 << 31, 2**32 - 1], tf.uint32)  # the extreme uniforms
    noise = counter_noise.uniform_from_bits(words)[:, None]
    parameters = tf.constant([[0.3, -1.2]] * 4)
    for symbols in (
        distribution.sample(parameters, noise, temperature),
        tf.function(distribution.sample)(parameters, noise, tf.constant(temperature)),
    ):
        assert np.isfinite(symbols).all() and (np.diff(symbols) >= 0).all()


def test_a_temperature_above_1_widens_as_a_factor_on_the_log_odds():
    distribution = FromTFP(lambda p: Logit(), 1)
    narrow, wide = (
        distribution.sample(tf.zeros([500, 1]), distribution.noise(3, [0], 0, 500)[0], t).numpy()
        for t in (1.0, 1.5)
    )
    np.testing.assert_allclose(wide, 1.5 * narrow, rtol=1e-4, atol=1e-6)


class Logit:
    """A standard logistic distribution."""

    def log_prob(self, value):
        return -value - 2.0 * tf.math.softplus(-value)

    def quantile(self, uniform):
        return tf.math.log(uniform) - tf.math.log1p(-uniform)


NO_MASS = {
    "density": lambda p: Laplace(p[..., 0], tf.fill(tf.shape(p)[:-1], 0.05)),
    "scale of a parameter": lambda p: Laplace(32.0 + p[..., 0], tf.exp(p[..., 1])),
    "below": lambda p: Laplace(-40.0 + p[..., 0], tf.exp(p[..., 1])),
}


@pytest.mark.parametrize("make", NO_MASS.values(), ids=NO_MASS)
def test_levels_whose_probabilities_do_not_sum_to_1_are_refused(make):
    with pytest.raises(ValueError, match=r"^`make` must be .* on \[0, 64\) sum to 1, got "):
        FromTFP(make, 2, levels=64)
    assert FromTFP(make, 2).levels is None


@pytest.mark.parametrize("levels", [2, 256, 65536])
def test_discretised_and_counting_distributions_of_tensorflow_probability_are_taken(levels):
    tfd = pytest.importorskip("tensorflow_probability").distributions
    top = levels - 1.0

    def quantized(p):
        logistic = tfd.Logistic((p[..., 0] + 1.0) * 0.5 * top, tf.exp(p[..., 1]) * 0.5 * top)
        return tfd.QuantizedDistribution(logistic, low=0.0, high=top)

    assert FromTFP(quantized, 2, levels=levels).levels == levels
    if levels < 1000:
        assert FromTFP(lambda p: tfd.Binomial(top, logits=p[..., 0]), 1, levels).levels == levels
    if levels == 256:  # large rates exceed the levels
        assert FromTFP(lambda p: tfd.Poisson(log_rate=p[..., 0]), 1, levels).levels == levels
        counts = FromTFP(lambda p: tfd.Poisson(rate=p[..., 0]), 1, levels)  # refuses most (NaN)
        assert counts.levels == levels
