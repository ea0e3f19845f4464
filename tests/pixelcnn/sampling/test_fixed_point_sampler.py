"""Iterating whole passes to a fixed point draws what the cached sampler draws, in fewer passes."""

import functools
import heapq

import numpy as np
import pytest
import tensorflow as tf
from image_networks import KINDS, condition_of, image_of, network_of, output_of, pixelcnn_of
from marks import some_slow

from pixelcnn.autoregression import context_rows, linear_forecast
from pixelcnn.density import Prefix, image_words, sample
from pixelcnn.model import sampler_of
from pixelcnn.networks.conditioning import NONE, Condition

HEIGHT, WIDTH, BATCH, MOST = 9, 6, 2, 5
PIXELS = HEIGHT * WIDTH


def sample_by_fixed_point(network, words, condition, given=None, temperature=1.0, **options):
    """The images, whose passes draw all rows by default."""
    sampler = sampler_of("fixed-point", **{"active_rows": None, **options})
    return sampler(network, words, condition, given, temperature)


@functools.cache
def program(kind, sampler, batch=BATCH, **fields):
    """A sampler of a network as a function of words, count, temperature and fields of it."""
    network, output = network_of(kind), network_of(kind).output_config
    channels = (KINDS[kind].get("vector", 0), KINDS[kind].get("map_", 0))
    condition = condition_of(MOST, HEIGHT, WIDTH, *channels)
    condition = Condition(*(None if x is None else x[:batch] for x in condition))
    levels = image_of(MOST, HEIGHT, WIDTH, output.channels, output.levels)[:batch]

    @tf.function(autograph=False)
    def draw(words, count, temperature, **more):
        given = Prefix(levels, count)
        return sampler(network, words, condition, given, temperature, **fields, **more)

    return draw


def drawn(kind, seed=5, count=0, temperature=1.0, guess=0, batch=BATCH, **fields):
    """Images of the cached sampler, of the fixed point, and the passes of each and of all."""
    words = image_words(network_of(kind), seed, list(range(batch)), HEIGHT, WIDTH)
    shape = [batch, HEIGHT, WIDTH, network_of(kind).output_config.channels]
    given, guess = (
        (words, tf.constant(count), tf.constant(temperature)),
        tf.broadcast_to(guess, shape),
    )
    cached = program(kind, sample, batch)(*given)
    iterated = program(kind, sample_by_fixed_point, batch, **fields)(*given, guess=guess)
    return [x.numpy() for x in (cached, *iterated)]


@pytest.mark.parametrize("seed", [0, 5, 2**40 + 1])
@pytest.mark.parametrize("kind", KINDS)
def test_the_fixed_point_is_what_the_cached_sampler_draws(kind, seed):
    cached, iterated, passes, batch_passes = drawn(kind, seed)
    np.testing.assert_array_equal(iterated, cached)
    assert len(np.unique(cached)) > 5
    assert (passes > 1).all() and batch_passes == passes.max() < PIXELS


@pytest.mark.parametrize("count", [1, 20, PIXELS - 1, PIXELS])
def test_given_pixels_are_kept_and_the_others_are_as_the_cached_ones(count):
    cached, iterated, passes, _ = drawn("colour softmax, conditioned", count=count)
    np.testing.assert_array_equal(iterated, cached)
    assert (passes <= PIXELS - count).all()


@pytest.mark.parametrize("active_rows", [1, 2, HEIGHT])
@pytest.mark.parametrize(
    "kind", some_slow(["grey mixture, conditioned", "colour mixture"], ("colour mixture",))
)
def test_a_window_of_rows_changes_the_passes_and_not_the_images(kind, active_rows):
    assert context_rows(network_of(kind)) + 1 < HEIGHT
    cached, iterated, *_ = drawn(kind, active_rows=active_rows)
    np.testing.assert_array_equal(iterated, cached)


def test_the_guess_changes_the_passes_and_not_the_images():
    kind = "grey softmax, without coordinates"
    first, iterated, *_ = drawn(kind, guess=3)
    other, again, *_ = drawn(kind, guess=15)
    np.testing.assert_array_equal(iterated, again)
    np.testing.assert_array_equal(first, other)


def test_the_image_itself_as_a_guess_takes_one_pass():
    kind = "colour softmax, conditioned"
    _, again, passes, _ = drawn(kind, guess=drawn(kind)[0])
    np.testing.assert_array_equal(again, drawn(kind)[0])
    assert passes.tolist() == [1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 7])
def test_any_forecast_gives_the_same_images_and_the_right_one_in_two_passes(count):
    network = network_of("colour mixture")
    words, given = (
        image_words(network, 5, [0, 1], HEIGHT, WIDTH),
        image_of(2, HEIGHT, WIDTH, 3, 256),
    )
    given = Prefix(given, tf.constant(count))
    cached = sample(network, words, NONE, given)
    found = {
        name: sample_by_fixed_point(network, words, NONE, given, forecast=forecast)
        for name, forecast in {
            "none": None,
            "right": lambda network, *_: tf.concat(network(cached, NONE), -1),
            "wrong": lambda network, parameters, *_: -parameters - 0.5,
        }.items()
    }
    for name, each in found.items():
        np.testing.assert_array_equal(each.levels, cached, name)
    assert found["right"].passes.numpy().tolist() == [2, 2]
    assert (found["none"].passes > 2).numpy().all()


def test_the_linear_forecast_saves_passes_where_pixels_follow_the_linear_prediction():
    network = pixelcnn_of(output_of("logistic", 1, 256), layers=1)
    network.output.kernel.assign(0.01 * network.output.kernel)
    words = image_words(network, 5, [0, 1, 2], HEIGHT, WIDTH)
    plain, linear = (
        sample_by_fixed_point(network, words, NONE, forecast=forecast)
        for forecast in (None, linear_forecast)
    )
    np.testing.assert_array_equal(plain.levels, linear.levels)
    assert (linear.passes <= 0.7 * plain.passes.numpy()).numpy().all()


@pytest.mark.parametrize("slots", some_slow([1, 2, MOST + 1], (1, MOST + 1)))
def test_images_that_are_done_make_way_for_the_next(slots):
    kind = "grey softmax, without coordinates"
    cached, iterated, passes, batch_passes = drawn(kind, batch=MOST, slots=slots, active_rows=2)
    np.testing.assert_array_equal(iterated, cached)
    assert passes.tolist() == drawn(kind, batch=MOST, active_rows=2)[2].tolist()
    assert len(set(passes.tolist())) > 1
    ends = [0] * slots
    for count in passes:  # the next image takes the slot that is free first
        heapq.heapreplace(ends, ends[0] + int(count))
    assert batch_passes == max(ends)


@pytest.mark.parametrize("name", ["active_rows", "slots"])
def test_a_window_without_rows_and_a_batch_without_slots_are_refused(name):
    network = network_of("colour mixture")
    words = image_words(network, 0, [0], HEIGHT, WIDTH)
    with pytest.raises(ValueError, match=f"`{name}` must be at least 1, got 0"):
        sample_by_fixed_point(network, words, Condition(), **{name: 0})
