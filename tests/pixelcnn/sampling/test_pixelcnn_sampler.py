"""The cached sampler draws what the naive one draws, and that is what the density describes."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from image_networks import (
    KINDS,
    condition_of,
    image_of,
    network_of,
    output_of,
    pixelcnn_of,
    recorded,
)

from pixelcnn.density import Prefix, image_words, sample
from pixelcnn.model import sampler_of
from pixelcnn.networks.conditioning import NONE, Condition
from pixelcnn.networks.layers import Hidden
from pixelcnn.networks.pixelcnn import PixelCNN

HEIGHT, WIDTH, BATCH = 5, 7, 3
PIXELS = HEIGHT * WIDTH


def sample_naively(*arguments):
    """The images by one pass of the whole network per pixel."""
    return sampler_of("naive")(*arguments)


def condition_for(kind, height=HEIGHT, width=WIDTH, rows=(0, 1, 2)):
    channels = (KINDS[kind].get("vector", 0), KINDS[kind].get("map_", 0))
    condition = condition_of(BATCH, height, width, *channels)
    return Condition(*(None if x is None else tf.gather(x, rows) for x in condition))


def given_of(kind, height, width):
    """Images to go on from, int32 [BATCH, height, width, channels]."""
    output = network_of(kind).output_config
    return image_of(BATCH, height, width, output.channels, output.levels)


@functools.cache
def in_a_graph(sampler, kind):
    """A sampler of a network as a function of tensors, traced once."""
    network = network_of(kind)

    @tf.function(autograph=False)
    def draw(words, condition, levels, count, temperature):
        return sampler(network, words, condition, Prefix(levels, count), temperature)

    return draw


@functools.cache
def drawn(sampler, kind, seed=5, rows=(0, 1, 2), count=0, temperature=1.0):
    """Images [rows, HEIGHT, WIDTH, channels] that go on after the first given pixels."""
    words = image_words(network_of(kind), seed, list(rows), HEIGHT, WIDTH)
    condition = condition_for(kind, rows=rows)
    levels = tf.gather(given_of(kind, HEIGHT, WIDTH), rows)
    state = (levels, tf.constant(count), tf.constant(temperature))
    return in_a_graph(sampler, kind)(words, condition, *state).numpy()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("kind", KINDS)
def test_cached_equals_naive(kind, temperature):
    draws = [drawn(each, kind, temperature=temperature) for each in (sample, sample_naively)]
    np.testing.assert_array_equal(*draws)
    assert len(np.unique(draws[0])) > 5
    assert temperature == 1.0 or (draws[0] != drawn(sample, kind)).any()


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 3), (3, 1)])
@pytest.mark.parametrize("kind", KINDS)
def test_cached_equals_naive_on_the_smallest_images(kind, height, width):
    words = image_words(network_of(kind), 5, [0, 1, 2], height, width)
    condition = condition_for(kind, height, width)
    cached, naive = (each(network_of(kind), words, condition) for each in (sample, sample_naively))
    np.testing.assert_array_equal(cached, naive)
    assert len(np.unique(cached)) > 1


@pytest.mark.parametrize("count", [1, 14, 24, PIXELS])
@pytest.mark.parametrize("kind", KINDS)
def test_given_pixels_are_kept_and_the_others_drawn(kind, count):
    cached, naive = (drawn(each, kind, count=count) for each in (sample, sample_naively))
    np.testing.assert_array_equal(cached, naive)
    given = given_of(kind, HEIGHT, WIDTH).numpy().reshape(BATCH, PIXELS, -1)
    flat = cached.reshape(BATCH, PIXELS, -1)
    np.testing.assert_array_equal(flat[:, :count], given[:, :count])
    if count < PIXELS:
        assert (flat[:, count] != given[:, count]).any()
        other = drawn(sample, kind, seed=6, count=count).reshape(BATCH, PIXELS, -1)
        assert (flat[:, count:] != other[:, count:]).any()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_given_moves_what_is_drawn(kind):
    ends = [drawn(sample, kind, count=count)[:, 2:] for count in (0, 14)]
    assert (ends[0] != ends[1]).any()


@pytest.mark.parametrize("sampler", [sample, sample_naively])
@pytest.mark.parametrize("kind", KINDS)
def test_the_density_is_the_sum_of_the_conditionals_drawn_from(kind, sampler):
    network, record = network_of.__wrapped__(kind), []
    recorded(network.output, record)
    words, condition = image_words(network, 9, [0, 1, 2], 3, 4), condition_for(kind, 3, 4)
    image = sampler(network, words, condition)
    each = network.log_prob(image, condition)
    drawn_from = tf.reshape(tf.stack(record, 1), [BATCH, 12])
    np.testing.assert_allclose(drawn_from, tf.reshape(each, [BATCH, 12]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("likelihood", ["logistic", "softmax"])
def test_a_prediction_from_elsewhere_is_added_at_its_own_pixel(likelihood):
    network, record = pixelcnn_of(output_of(likelihood, 3, 16), layers=1), []
    elsewhere = condition_of(2, 3, 4, 0, 3).map
    words = image_words(network, 9, [0, 1], 3, 4)
    without = sample(network, words, NONE)
    recorded(network.output, record)
    image = sample(network, words, NONE, prediction=elsewhere)
    assert (image != without).numpy().any()
    units, prediction = network(image, NONE)
    each = network.output.log_prob(Hidden(units, prediction + elsewhere), image)
    np.testing.assert_allclose(tf.stack(record, 1), tf.reshape(each, [2, 12]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sampler", [sample, sample_naively])
def test_each_pixel_is_drawn_once_from_its_own_words(sampler):
    network, calls = pixelcnn_of(), []

    def drawing_its_words(hidden, words, *weights):
        calls.append(len(words))
        return tf.bitcast(words[..., :1], tf.int32)

    network.output.sample = drawing_its_words
    words = image_words(network, 3, [0, 1], 4, 5)
    image = sampler(network, words, NONE)
    np.testing.assert_array_equal(image, tf.bitcast(words[..., :1], tf.int32))
    assert calls == [2] * 20


def test_no_two_pixels_share_a_word():
    network = pixelcnn_of(output_of(channels=3))
    words = [image_words(network, seed, [0, 1, 7], 6, 5).numpy() for seed in (1, 2)]
    assert len(np.unique(words)) == 2 * 3 * 30 * network.output.noise_words


def test_the_cached_sampler_needs_no_pass_of_the_network(monkeypatch):
    passes, forward = [], PixelCNN.compute_hidden

    def counted(self, *args):
        passes.append(1)
        return forward(self, *args)

    monkeypatch.setattr(PixelCNN, "compute_hidden", counted)
    network = pixelcnn_of()
    words = image_words(network, 3, [0], 3, 4)
    sample(network, words, NONE)
    assert len(passes) == 0
    sample_naively(network, words, NONE)
    assert len(passes) == 12


def test_a_compiler_changes_no_pixel():
    kind = "colour mixture"
    network, levels = network_of(kind), given_of(kind, HEIGHT, WIDTH)
    words = image_words(network, 5, [0, 1, 2], HEIGHT, WIDTH)

    @tf.function(jit_compile=True)
    def compiled(words, condition, count, temperature):
        return sample(network, words, condition, Prefix(levels, count), temperature)

    for fields in ({}, {"count": 24}, {"temperature": 0.7}):
        state = {"count": 0, "temperature": 1.0} | fields
        found = compiled(words, condition_for(kind), *map(tf.constant, state.values()))
        np.testing.assert_array_equal(found, drawn(sample, kind, **fields))
