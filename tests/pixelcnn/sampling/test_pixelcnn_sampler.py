"""Every sampler draws what the naive one draws, and that is what the density describes."""

import functools
import heapq

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
from marks import some_slow

from pixelcnn.autoregression import context_rows, linear_forecast
from pixelcnn.density import Prefix, image_words, sample
from pixelcnn.model import sampler_of
from pixelcnn.networks.layers import NONE, Condition, Hidden
from pixelcnn.networks.pixelcnn import PixelCNN

HEIGHT, WIDTH, BATCH, MOST = 9, 6, 2, 5
PIXELS = HEIGHT * WIDTH
GREY, COLOUR = "grey mixture, conditioned", "colour softmax, conditioned"
SOFTMAX = "grey softmax, without coordinates"


def condition_for(kind, height=HEIGHT, width=WIDTH, batch=BATCH):
    condition = condition_of(
        MOST, height, width, KINDS[kind].get("vector", 0), KINDS[kind].get("map_", 0)
    )
    return Condition(*(None if x is None else x[:batch] for x in condition))


def given_of(kind, batch=BATCH):
    """Images to go on from, int32 [batch, HEIGHT, WIDTH, channels]."""
    output = network_of(kind).output_config
    return image_of(MOST, HEIGHT, WIDTH, output.channels, output.levels)[:batch]


@functools.cache
def program(kind, method, batch=BATCH, **options):
    """A sampler of a network as a function of words, count and temperature, traced once."""
    if method == "fixed-point":  # whose passes draw all rows by default
        options = {"active_rows": None, **options}
    sampler = sampler_of(method, **options)
    network, condition = network_of(kind), condition_for(kind, batch=batch)
    levels = given_of(kind, batch)

    @tf.function(autograph=False)
    def draw(words, count, temperature):
        return sampler(network, words, condition, Prefix(levels, count), temperature)

    return draw


@functools.cache
def drawn(kind, method="cached", seed=5, count=0, temperature=1.0, batch=BATCH, **options):
    """Images, which go on after the first given pixels; by fixed point with their passes."""
    words = image_words(network_of(kind), seed, list(range(batch)), HEIGHT, WIDTH)
    draw = program(kind, method, batch, **options)
    found = draw(words, tf.constant(count), tf.constant(temperature))
    return tf.nest.map_structure(lambda x: x.numpy(), found)


QUICK = [
    *((GREY, 0, 1.0), ("grey mixture, dilated", 20, 1.0), (SOFTMAX, 0, 1.0), (COLOUR, 0, 0.7)),
    *((COLOUR, 1, 1.0), (COLOUR, PIXELS - 1, 1.0), (COLOUR, PIXELS, 1.0)),
]
CASES = [(kind, count, heat) for kind in KINDS for count in (0, 1, 20, PIXELS) for heat in (1, 0.7)]


@pytest.mark.parametrize(("kind", "count", "temperature"), [*QUICK, *some_slow(CASES, CASES)])
def test_every_sampler_draws_what_the_naive_one_draws(kind, count, temperature):
    naive, cached, iterated = (
        drawn(kind, method, count=count, temperature=float(temperature))
        for method in ("naive", "cached", "fixed-point")
    )
    np.testing.assert_array_equal(cached, naive)
    np.testing.assert_array_equal(iterated.levels, naive)
    assert (iterated.passes <= max(1, PIXELS - count)).all()
    given = given_of(kind).numpy().reshape(BATCH, PIXELS, -1)
    flat = cached.reshape(BATCH, PIXELS, -1)
    np.testing.assert_array_equal(flat[:, :count], given[:, :count])
    if count == 0:
        assert len(np.unique(cached)) > 5 and (iterated.passes > 1).all()
        assert iterated.batch_passes == iterated.passes.max() < PIXELS
    elif count < PIXELS:
        assert (flat[:, count] != given[:, count]).any()


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 3), (3, 1)])
@pytest.mark.parametrize("kind", some_slow(KINDS, (SOFTMAX, "colour mixture")))
def test_cached_equals_naive_on_the_smallest_images(kind, height, width):
    words = image_words(network_of(kind), 5, [0, 1], height, width)
    given = network_of(kind), words, condition_for(kind, height, width)
    np.testing.assert_array_equal(sample(*given), sampler_of("naive")(*given))


@pytest.mark.parametrize("method", ["cached", "naive"])
@pytest.mark.parametrize("kind", some_slow(KINDS, (SOFTMAX, "grey mixture, dilated")))
def test_the_density_is_the_sum_of_the_conditionals_drawn_from(kind, method):
    network, record = network_of.__wrapped__(kind), []
    recorded(network.output, record)
    words, condition = image_words(network, 9, [0, 1], 3, 4), condition_for(kind, 3, 4)
    image = sampler_of(method)(network, words, condition)
    each = network.output.log_prob(network(image, condition), image)
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


@pytest.mark.parametrize(("method", "passes"), [("cached", 0), ("naive", 20)])
def test_each_pixel_is_drawn_once_from_its_own_words(method, passes, monkeypatch):
    network, calls, forward = pixelcnn_of(), [], PixelCNN.compute_hidden
    monkeypatch.setattr(
        PixelCNN, "compute_hidden", lambda *given: calls.append("pass") or forward(*given)
    )

    def drawing_its_words(hidden, words, *weights):
        calls.append(len(words))
        return tf.bitcast(words[..., :1], tf.int32)

    network.output.sample = drawing_its_words
    words = image_words(network, 3, [0, 1], 4, 5)
    image = sampler_of(method)(network, words, NONE)
    np.testing.assert_array_equal(image, tf.bitcast(words[..., :1], tf.int32))
    assert (calls.count(2), calls.count("pass")) == (20, passes)


def test_a_window_of_rows_changes_not_the_images():
    assert context_rows(network_of(GREY)) + 1 < HEIGHT
    np.testing.assert_array_equal(drawn(GREY, "fixed-point", active_rows=2).levels, drawn(GREY))


def test_the_linear_forecast_saves_passes_where_pixels_follow_the_linear_prediction():
    network = pixelcnn_of(output_of("logistic", 1, 256), layers=1)
    network.output.kernel.assign(0.01 * network.output.kernel)
    words = image_words(network, 5, [0, 1, 2], HEIGHT, WIDTH)
    plain, linear = (
        sampler_of("fixed-point", active_rows=None, forecast=forecast)(network, words, NONE)
        for forecast in (None, linear_forecast)
    )
    np.testing.assert_array_equal(plain.levels, linear.levels)
    assert (linear.passes <= 0.7 * plain.passes.numpy()).numpy().all()


@pytest.mark.parametrize("slots", some_slow([1, 2, MOST + 1], (1, MOST + 1)))
def test_images_that_are_done_make_way_for_the_next(slots):
    found = drawn(SOFTMAX, "fixed-point", batch=MOST, slots=slots, active_rows=2)
    np.testing.assert_array_equal(found.levels, drawn(SOFTMAX, batch=MOST))
    passes = found.passes.tolist()
    assert passes == drawn(SOFTMAX, "fixed-point", batch=MOST, active_rows=2).passes.tolist()
    assert len(set(passes)) > 1
    ends = [0] * slots
    for count in passes:  # the next image takes the slot that is free first
        heapq.heapreplace(ends, ends[0] + count)
    assert found.batch_passes == max(ends)
