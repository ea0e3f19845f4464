"""A multiscale image is drawn scale by scale, each pixel once, as the density says."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from image_networks import condition_of, image_of, multiscale_of, output_of, recorded
from marks import some_slow

from pixelcnn.density import (
    Factor,
    SamplingInputs,
    condition_at,
    pixel_words,
    sample_base,
    sample_scales,
    temperatures_of,
)
from pixelcnn.model import sampler_of
from pixelcnn.networks.layers import NONE, Condition, split, subsample_blocks
from pixelcnn.networks.pixelcnn import PixelCNN

KINDS = ["A", "B"]
B_SLOW = some_slow(KINDS, ("B",))  # where the law is of the scales
OTHERS = [("A", "softmax"), ("B", "logistic")]
SIZE, CHANNELS = 8, (3, 2)


def outputs_of(model):
    factors = model.factors.values()
    return [model.base.output, *((f.output or f.shallow.output) for f in factors)]


def inputs_of(model, size, seed=5, rows=(0, 1, 2), temperature=1.0):
    """Return what some of three images of a seed, with a condition each, are drawn from."""
    condition = condition_at(condition_of(3, 2 * SIZE, 2 * SIZE, *CHANNELS), size)
    taken = Condition(*(tf.gather(x, rows) for x in condition))
    words = pixel_words(model, seed, list(rows), size**2)
    return SamplingInputs(words, taken, temperatures_of(temperature, 4))


def plain_inputs(model, size, rows=(0, 4)):
    return SamplingInputs(pixel_words(model, 1, list(rows), size**2), NONE, temperatures_of(1.0, 4))


@functools.cache
def conditioned(kind):
    """A model of four scales that reads a vector and a map."""
    return multiscale_of(kind, 2 * SIZE, output_of("softmax", 3, 16), *CHANNELS, blocks=1)


@functools.cache
def drawn(kind, size=SIZE, **fields):
    """The largest images, an array [rows, size, size, channels]."""
    inputs = inputs_of(conditioned(kind), size, **fields)
    return sample_scales(conditioned(kind), inputs, size)[-1].numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_each_pixel_is_drawn_from_its_own_words(kind):
    model = multiscale_of(kind)
    for output in outputs_of(model):
        output.sample = lambda hidden, words, *_: tf.bitcast(words[..., :1], tf.int32)
    inputs = plain_inputs(model, SIZE)
    base, *larger = sample_scales(model, inputs, SIZE)
    drawn = [base, *(group for image in larger for group in split(image)[1:])]
    in_order = np.concatenate([np.reshape(group, [2, -1]) for group in drawn], 1)
    np.testing.assert_array_equal(in_order, tf.bitcast(inputs.words[..., 0], tf.int32))


def test_no_two_pixels_of_any_image_or_seed_share_a_word():
    model = multiscale_of(output=output_of("logistic", 3))
    words = [pixel_words(model, seed, [0, 7], SIZE**2).numpy() for seed in (1, 2)]
    assert len(np.unique(words)) == 2 * 2 * SIZE**2 * model.base.output.noise_words


@pytest.mark.parametrize(("kind", "size"), [("A", 16), ("B", 4)])
def test_a_doubling_takes_three_passes_and_the_base_one_a_pixel(kind, size, monkeypatch):
    passes = []
    for network, call in ((Factor, "__call__"), (PixelCNN, "compute_hidden")):
        original = getattr(network, call)

        def counted(self, *args, forward=original, name=network.__name__):
            passes.append(name)
            return forward(self, *args)

        monkeypatch.setattr(network, call, counted)
    model = multiscale_of(kind, 16)
    steps = []
    for output in outputs_of(model):

        def counted_step(*args, step=output.sample):
            steps.append(1)
            return step(*args)

        output.sample = counted_step
    inputs = plain_inputs(model, size, [0])
    sample_scales(model, inputs, size)
    factor_passes, base_pixels = 3 * model.sizes.index(size), 4
    assert passes == ["Factor"] * factor_passes
    steps_a_pass = 1 if kind == "A" else 4  # patches of 2 x 2
    assert len(steps) == base_pixels + factor_passes * steps_a_pass
    passes.clear()
    sample_base(model, inputs, sampler_of("naive"))
    assert passes == ["PixelCNN"] * base_pixels


@pytest.mark.parametrize(
    ("kind", "likelihood"),
    some_slow([("A", "logistic"), ("B", "softmax"), ("A", "softmax"), ("B", "logistic")], OTHERS),
)
def test_the_density_is_the_sum_of_the_conditionals_drawn_from(kind, likelihood):
    model, record = multiscale_of(kind, 4, output_of(likelihood, 3, 16), *CHANNELS), []
    for output in outputs_of(model):
        recorded(output, record)
    inputs = inputs_of(model, 4)
    image = sample_scales(model, inputs, 4)[-1]
    each = [tf.reduce_sum(tf.reshape(nats, [3, -1]), 1) for nats in record]
    density = tf.add_n(list(model.nats(image, inputs.condition).values()))
    np.testing.assert_allclose(tf.add_n(each), density, rtol=1e-5, atol=1e-3)
    assert len(np.unique(image)) == 16


@pytest.mark.parametrize("kind", B_SLOW)
def test_a_larger_image_has_the_smaller_one_or_a_given_start_for_its_sub_sample(kind):
    large, start = drawn(kind, 2 * SIZE), image_of(3, 4, 4, 3, 16)
    for size in (4, SIZE):
        np.testing.assert_array_equal(subsample_blocks(large, size), drawn(kind, size))
    model, inputs = conditioned(kind), inputs_of(conditioned(kind), SIZE)
    images = sample_scales(model, inputs, SIZE, start)
    assert [image.shape[1] for image in images] == [4, 8]
    np.testing.assert_array_equal(subsample_blocks(images[-1], 4), start)
    assert (images[-1] != drawn(kind)).numpy().any()
    again = sample_scales(model, inputs, SIZE, tf.constant(drawn(kind, 4)))
    np.testing.assert_array_equal(again[-1], drawn(kind))


@pytest.mark.parametrize("kind", B_SLOW)
def test_each_scale_has_a_temperature_of_its_own(kind):
    warm, heat = drawn(kind), (1.0, 1.0, 0.0, 1.0)
    cold_above = drawn(kind, temperature=heat)
    np.testing.assert_array_equal(subsample_blocks(cold_above, 4), subsample_blocks(warm, 4))
    assert (cold_above != warm).any()
    one, other = (drawn(kind, seed=seed, temperature=0.0) for seed in (5, 6))
    np.testing.assert_array_equal(one, other)
    start, inputs = subsample_blocks(one, 4), inputs_of(conditioned(kind), SIZE, temperature=heat)
    found = sample_scales(conditioned(kind), inputs, SIZE, tf.constant(start))[-1]
    np.testing.assert_array_equal(found, one)
