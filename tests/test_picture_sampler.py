"""The cached sampler draws what the naive one draws, and that is what the density describes."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from pictures import condition_of, output_of, picture_of, pixelcnn_of, recorded

from pixelcnn.conditioning import NONE, Condition
from pixelcnn.network import PixelCNN
from pixelcnn.outputs import Hidden
from pixelcnn.sampler import Given, picture_words, sample, sample_naively

KINDS = {
    "grey mixture, conditioned": dict(output=("logistic", 1, 256), vector=3, map_=2),
    "colour mixture": dict(output=("logistic", 3, 256), layers=1),
    "grey softmax, without coordinates": dict(output=("softmax", 1, 16), coordinates=False),
    "colour softmax, conditioned": dict(output=("softmax", 3, 16), vector=2, map_=1),
}
SIZES = [(1, 1), (5, 7)]
BATCH = 3


def network_of(kind):
    """A network of a kind."""
    fields = dict(KINDS[kind])
    return pixelcnn_of(output_of(*fields.pop("output")), **fields)


def condition_for(kind, height, width, rows=(0, 1, 2)):
    """Some rows of a condition for `BATCH` pictures."""
    channels = (KINDS[kind].get("vector", 0), KINDS[kind].get("map_", 0))
    condition = condition_of(BATCH, height, width, *channels)
    return Condition(*(None if x is None else tf.gather(x, rows) for x in condition))


@functools.cache
def samplers(kind):
    """A network, and the cached and the naive sampler for it as compiled functions."""
    network = network_of(kind)

    def compiled(sampler):
        def draw(words, condition, levels, count, temperature):
            return sampler(network, words, condition, Given(levels, count), temperature)

        return tf.function(draw)

    return network, compiled(sample), compiled(sample_naively)


def drawn(kind, height, width, seed=5, rows=(0, 1, 2), count=0, temperature=1.0):
    """Given pictures, and those that the cached and the naive sampler go on to from there."""
    network, cached, naive = samplers(kind)
    words = picture_words(network, seed, list(rows), height, width)
    output = network.output_config
    given = tf.gather(picture_of(BATCH, height, width, output.channels, output.levels), rows)
    state = (given, tf.constant(count), tf.constant(temperature))
    condition = condition_for(kind, height, width, rows)
    return tuple(
        x.numpy() for x in (given, *(s(words, condition, *state) for s in (cached, naive)))
    )


@pytest.mark.parametrize(("height", "width"), SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_cached_equals_naive(kind, height, width):
    for temperature in (1.0, 0.7):
        _, cached, naive = drawn(kind, height, width, temperature=temperature)
        np.testing.assert_array_equal(cached, naive)
        assert len(np.unique(cached)) > (1 if height == 1 else 5)


@pytest.mark.parametrize("count", [1, 10, 21, 34, 35])
@pytest.mark.parametrize("kind", KINDS)
def test_given_pixels_are_kept_and_the_others_drawn(kind, count):
    given, cached, naive = drawn(kind, 5, 7, count=count)
    np.testing.assert_array_equal(cached, naive)
    flat_given, flat = (x.reshape(BATCH, 35, -1) for x in (given, cached))
    np.testing.assert_array_equal(flat[:, :count], flat_given[:, :count])
    if count < 34:
        assert (flat[:, count:] != flat_given[:, count:]).any()
        other = drawn(kind, 5, 7, seed=6, count=count)[1].reshape(BATCH, 35, -1)
        assert (flat[:, count:] != other[:, count:]).any()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_given_moves_what_is_drawn(kind):
    ends = [drawn(kind, 5, 7, count=count)[1][:, 2:] for count in (0, 14)]
    assert (ends[0] != ends[1]).any()


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_given_is_no_pixel_given(kind):
    network, cached, _ = samplers(kind)
    words, condition = picture_words(network, 5, [0, 1, 2], 2, 3), condition_for(kind, 2, 3)
    np.testing.assert_array_equal(sample(network, words, condition), drawn(kind, 2, 3)[1])


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_is_the_same_in_any_batch_and_no_other_row_or_seed_has_it(kind):
    batch = drawn(kind, 5, 7)[1]
    alone = drawn(kind, 5, 7, rows=(2,))[1]
    np.testing.assert_array_equal(batch[2:], alone)
    others = [batch[0], batch[1], *drawn(kind, 5, 7, seed=6)[1]]
    assert all((alone[0] != other).any() for other in others)


@pytest.mark.parametrize("sampler", [sample, sample_naively])
@pytest.mark.parametrize("kind", KINDS)
def test_the_density_is_the_sum_of_the_conditionals_drawn_from(kind, sampler):
    network, record = network_of(kind), []
    recorded(network.output, record)
    words, condition = picture_words(network, 9, [0, 1, 2], 3, 4), condition_for(kind, 3, 4)
    picture = sampler(network, words, condition)
    each = network.log_prob(picture, condition)
    np.testing.assert_allclose(
        tf.stack(record, 1), tf.reshape(each, [BATCH, 12]), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("likelihood", ["logistic", "softmax"])
def test_a_prediction_from_elsewhere_is_added_at_its_own_pixel(likelihood):
    network, record = pixelcnn_of(output_of(likelihood, 3, 16)), []
    elsewhere = condition_of(2, 3, 4, 0, 3).map
    words = picture_words(network, 9, [0, 1], 3, 4)
    without = sample(network, words, NONE)
    recorded(network.output, record)
    picture = sample(network, words, NONE, prediction=elsewhere)
    assert (picture != without).numpy().any()
    units, prediction = network(picture, NONE)
    each = network.output.log_prob(Hidden(units, prediction + elsewhere), picture)
    np.testing.assert_allclose(tf.stack(record, 1), tf.reshape(each, [2, 12]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sampler", [sample, sample_naively])
def test_each_pixel_is_drawn_once_from_its_own_words(sampler):
    network, calls = pixelcnn_of(), []

    def drawing_its_words(hidden, words, temperature):
        calls.append(len(words))
        return tf.bitcast(words[..., :1], tf.int32)

    network.output.sample = drawing_its_words
    words = picture_words(network, 3, [0, 1], 4, 5)
    picture = sampler(network, words, NONE)
    np.testing.assert_array_equal(picture, tf.bitcast(words[..., :1], tf.int32))
    assert calls == [2] * 20


def test_no_two_pixels_share_a_word():
    network = pixelcnn_of(output_of(channels=3))
    words = [picture_words(network, seed, [0, 1, 7], 6, 5).numpy() for seed in (1, 2)]
    assert len(np.unique(words)) == 2 * 3 * 30 * network.output.noise_words


def test_the_cached_sampler_needs_no_pass_of_the_network(monkeypatch):
    passes, forward = [], PixelCNN.__call__

    def counted(self, *args):
        passes.append(1)
        return forward(self, *args)

    monkeypatch.setattr(PixelCNN, "__call__", counted)
    network = pixelcnn_of()
    words = picture_words(network, 3, [0], 3, 4)
    sample(network, words, NONE)
    assert len(passes) == 0
    sample_naively(network, words, NONE)
    assert len(passes) == 12


def test_without_chance_there_is_one_picture():
    kind = "grey mixture, conditioned"
    pictures = [drawn(kind, 5, 7, seed=seed, temperature=0.0)[1] for seed in (1, 2)]
    np.testing.assert_array_equal(*pictures)
    assert (pictures[0] != drawn(kind, 5, 7, seed=1)[1]).any()


def test_a_compiler_changes_no_pixel():
    kind = "colour softmax, conditioned"
    network = samplers(kind)[0]
    words, condition = picture_words(network, 5, [0, 1, 2], 5, 7), condition_for(kind, 5, 7)
    compiled = tf.function(lambda w, c: sample(network, w, c), jit_compile=True)
    np.testing.assert_array_equal(compiled(words, condition), drawn(kind, 5, 7)[2])
