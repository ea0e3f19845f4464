"""Guided images: every sampler draws the same ones, from the distribution that is written down."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from image_networks import image_of, multiscale_of, output_of, pixelcnn_of
from marks import some_slow
from scipy import stats

from onepass.likelihoods import noise
from onepass.likelihoods.noise import Initial
from pixelcnn.config import ConditioningConfig
from pixelcnn.data.batch_sampling import DROPPED
from pixelcnn.data.captions import encode_caption
from pixelcnn.density import pixel_words
from pixelcnn.model import count_passes, sample_multiscale, sample_pixelcnn, sampler_of
from pixelcnn.networks.layers import (
    NULL_FLOOR,
    Condition,
    Conditioner,
    Hidden,
    both_sides,
    guided_log_prob,
    guided_nats,
    sample_guided,
)

CLASSES, SIDE, LEVELS = 3, 5, 16
CONDITIONER = Conditioner(ConditioningConfig("class", CLASSES), Initial(0))
OUTPUTS = [("logistic", 3, LEVELS), ("softmax", 3, LEVELS), ("logistic", 1, 256)]
QUICK = [OUTPUTS[0], *(pytest.param(o, marks=pytest.mark.slow) for o in OUTPUTS[1:])]


@functools.cache
def network_of(output):
    return pixelcnn_of(output_of(*output), CLASSES)


SAMPLERS = {name: sampler_of(name) for name in ("cached", "naive", "fixed-point")}


@pytest.mark.parametrize("kind", some_slow(["A", "B"], ("B",)))
def test_guided_multiscale_images_are_the_same_by_every_sampler_of_the_base(kind):
    model = multiscale_of(kind, 4, output_of("softmax", 3, LEVELS), CLASSES)
    words = pixel_words(model, 5, [0, 1], 16)
    temperatures = tf.constant([1.0, 0.8])

    def sampled(sampler, guidance, start=None):
        fixed = (CONDITIONER, model, 4, SAMPLERS[sampler], {"label": tf.constant([0, 1])}, words)
        scales, base = sample_multiscale(*fixed, start, temperatures, guidance)
        assert all(base.passes > 0) == (base.batch_passes > 0) == (sampler == "fixed-point")
        return scales

    cached, naive, iterated = (sampled(sampler, 1.5) for sampler in SAMPLERS)
    for scales in zip(cached, naive, iterated, strict=True):
        np.testing.assert_array_equal(scales[0], scales[1])
        np.testing.assert_array_equal(scales[0], scales[2])
    np.testing.assert_array_equal(sampled("cached", 1.5, cached[0])[-1], cached[-1])
    assert (cached[-1] != sampled("cached", None)[-1]).numpy().any()


@pytest.mark.slow
@pytest.mark.parametrize("output", QUICK)
def test_an_image_is_guided_alone_as_in_any_batch(output):
    def drawn(labels, rows, guidance=2.0):
        batch, weight = {"label": tf.constant(labels)}, guidance and tf.constant(guidance)
        what = (CONDITIONER, network_of(output), SIDE, SAMPLERS["cached"], batch, 5, rows)
        return np.array(count_passes(sample_pixelcnn(*what, None, 1.0, weight)).levels)

    both = drawn([0, 1], [0, 1])
    np.testing.assert_array_equal(drawn([1], [1]), both[1:])
    assert (drawn([0, 1], [0, 1], None) != both).any()


def hidden_states(output, batch, seed=0):
    """Hidden states [2 batch, ...] far apart, the first half conditioned."""
    draws = np.random.default_rng(seed)
    sizes = (network_of(output).config.output_units, output[1])
    return Hidden(*(tf.constant(draws.normal(size=(2 * batch, n)), tf.float32) for n in sizes))


@pytest.mark.parametrize("output", QUICK[:2])
def test_samples_follow_the_guided_distribution_of_every_channel(output):
    network, weight, count = network_of(output).output, 1.5, 20_000
    one = hidden_states(output, 1)
    many = Hidden(*(tf.repeat(part, count, 0) for part in one))
    words = tf.tile(noise.words(3, [0], 0, count, network.noise_words)[0], [2, 1])
    levels = sample_guided(network, many, words, 1.0, weight).numpy()
    np.testing.assert_array_equal(levels[:count], levels[count:])
    before: list[tf.Tensor] = []
    nats = 0.0
    for channel in range(output[1]):
        given, null = np.float64(network.level_probabilities(one, before))
        q = given * (given / np.maximum(null, NULL_FLOOR)) ** weight
        level = int(np.argmax(q))
        alike = np.all([levels[:count, c] == int(b[0]) for c, b in enumerate(before)] or [True], 0)
        found = levels[:count, channel][np.broadcast_to(alike, [count])]
        share = np.bincount(found, minlength=len(q)) / len(found)
        assert len(found) > 300
        np.testing.assert_allclose(share, q / q.sum(), atol=4 / np.sqrt(len(found)))
        before.append(tf.fill([2], level))
        nats += np.log(q[level] / q.sum())
    likeliest = tf.stack([level[:1] for level in before], -1)
    found = guided_log_prob(network, one, likeliest, weight)
    assert float(found[0]) == pytest.approx(nats, rel=1e-3)


@pytest.mark.parametrize("output", QUICK)
def test_the_tables_of_all_channels_are_the_density(output):
    network, hidden = network_of(output).output, hidden_states(output, 4)
    pixels = image_of(8, 1, 1, *output[1:])[:, 0, 0]
    total = 1.0
    for channel in range(output[1]):
        before = [pixels[:, c] for c in range(channel)]
        table = np.exp(network.level_log_probs(hidden, before))
        np.testing.assert_allclose(tf.reduce_sum(table, -1), np.ones(8), atol=1e-5)
        total *= tf.gather(table, pixels[:, channel], batch_dims=1)
    expected = np.exp(network.log_prob(hidden, pixels))
    np.testing.assert_allclose(total, expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("output", QUICK[:2])
def test_a_temperature_is_the_same_with_and_without_guidance(output):
    """At weight 0 a guided pixel has the law of an unguided one, at every temperature."""
    network, count, temperature = network_of(output).output, 20_000, 0.7
    one = hidden_states(output, 1)
    many = Hidden(*(tf.repeat(part, count, 0) for part in one))
    words = noise.words(3, [0], 0, 2 * count, network.noise_words)[0]
    guided = sample_guided(network, many, words, temperature, 0.0)[:count]
    own = network.sample(Hidden(*(part[:count] for part in many)), words[count:], temperature)
    for channel in range(output[1]):
        both = np.stack([np.bincount(x[:, channel], minlength=256) for x in (guided, own)])
        table = both[:, both.sum(0) > 20]
        assert stats.chi2_contingency(table).pvalue > 1e-3


@pytest.mark.parametrize("output", QUICK[:2])
def test_a_temperature_divides_what_guidance_adds(output):
    """The temperature of a softmax divides its own nats, and so all of log q."""
    network, hidden, weight = network_of(output).output, hidden_states(output, 2), 1.5
    sides = both_sides(hidden)
    warm, cold = (guided_nats(network, sides, [], weight, t) for t in (1.0, 0.5))
    given, null = (
        np.log(np.maximum(network.level_probabilities(side, []), 1e-30)) for side in sides
    )
    own = network.level_log_probs(sides[0], [], 0.5)
    added = weight * (given - np.maximum(null, np.log(NULL_FLOOR)))
    np.testing.assert_allclose(warm, given + added, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(cold, own + 2 * added, rtol=1e-5, atol=1e-3)
    if output[0] == "softmax":
        twice = tf.nn.log_softmax(2 * warm) - tf.nn.log_softmax(cold)
        np.testing.assert_allclose(twice, np.zeros_like(twice), atol=1e-3)


def test_levels_in_both_tails_gain_nothing():
    """A null that is narrower than the conditional would else send samples to its far tails."""

    class Tables:
        def level_log_probs(self, hidden, before, temperature=1.0):
            wide, narrow = (-0.5 * ((np.arange(256) - 128) / width) ** 2 for width in (20.0, 2.0))
            table = wide if float(hidden.prediction[0, 0]) == 1.0 else narrow
            return tf.nn.log_softmax(tf.constant([table], tf.float32) / max(temperature, 1e-6))

        def level_probabilities(self, hidden, before):
            return tf.exp(self.level_log_probs(hidden, before))

    hidden = Hidden(tf.zeros([2, 1]), tf.constant([[1.0], [0.0]]))
    words = tf.tile(noise.words(3, [0], 0, 1, 1)[0], [2, 1])
    found = sample_guided(Tables(), hidden, words, 0.0, 3.0)
    assert 128 - 40 < int(found[0, 0]) < 128 + 40


@pytest.mark.parametrize("kind", ["class", "text"])
def test_the_null_condition_is_what_a_dropped_one_becomes(kind):
    config = ConditioningConfig(kind, CLASSES, dropout=0.1, text_unit="word", text_map_channels=2)
    conditioner = Conditioner(config, Initial(0), 8)
    name, shown = {
        "class": ("label", tf.constant([1])),
        "text": ("caption", tf.constant(encode_caption("a dog"))[None]),
    }[kind]
    both = conditioner.with_null(conditioner({name: shown}))
    dropped = conditioner({name: tf.fill(tf.shape(shown), DROPPED[name])})
    assert (both.map is None) == (kind == "class")
    for pair, alone in zip(both, dropped, strict=True):
        if pair is not None:
            np.testing.assert_array_equal(pair[1:], alone)
            assert (pair[0] != pair[1]).numpy().any()


def test_only_classes_have_a_null_condition_without_dropout():
    condition = CONDITIONER.with_null(CONDITIONER({"label": tf.constant([2])}))
    np.testing.assert_allclose(condition.vector, [[0, 0, 1], [1 / 3] * 3])
    with pytest.raises(ValueError, match=r"have a null condition, got kind none\.$"):
        Conditioner(ConditioningConfig(), Initial(0)).with_null(Condition())
