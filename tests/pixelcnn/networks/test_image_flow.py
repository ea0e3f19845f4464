"""A flow over images: triangular in raster order, its inverse, density and bound exact."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from image_networks import QuickInitial, condition_of, image_of, output_of, perturbed

from onepass.likelihoods.codec import value_of
from pixelcnn.config import MultiscaleConfig, PixelCNNConfig
from pixelcnn.density import Multiscale, SamplingInputs, pixel_words, sample_scales
from pixelcnn.networks.image_flow import ImageFlow
from pixelcnn.networks.layers import NONE, Condition, Mode

HEIGHT, WIDTH, CHANNELS, LEVELS = 3, 4, 3, 16
NUMBERS = HEIGHT * WIDTH * CHANNELS
STEP = 2e-3  # of differences
CONFIG = PixelCNNConfig(1, 6, 8)


@functools.cache
def flow_of(layers=(1, 2), channels=CHANNELS, vector=2, levels=LEVELS):
    output = output_of("logistic", channels, levels)
    # Not too far from the start: the inverse of flows that are no contraction loses all digits.
    return perturbed(ImageFlow(CONFIG, layers, output, QuickInitial(0), vector), 0.1)


def noise_of(batch=1, height=HEIGHT, width=WIDTH, channels=CHANNELS, seed=3):
    draws = np.random.default_rng(seed).logistic(size=[batch, height, width, channels])
    return tf.constant(draws.astype(np.float32))


@functools.cache
def jacobian():
    """d x / d z of one image, float64 [numbers, numbers], numbers in raster order."""
    flow, noise, condition = flow_of(), noise_of(), condition_of(1, HEIGHT, WIDTH, 2)
    with tf.GradientTape() as tape:
        tape.watch(noise)
        output = tf.reshape(flow(noise, condition).output, [-1])
    return np.float64(tf.reshape(tape.jacobian(output, noise), [len(output), -1]))


def test_a_number_depends_on_the_noise_before_it_and_on_no_other():
    each = jacobian()
    assert np.abs(np.triu(each, 1)).max() == 0.0
    # Those of the pixel to the left, of the pixel above, and of earlier channels of the same one.
    places = np.arange(NUMBERS).reshape(HEIGHT, WIDTH, CHANNELS)
    for now, before in (
        (places[1, 2, 0], places[1, 1, 2]),
        (places[2, 1], places[1, 1]),
        (places[0, 0, 1:], places[0, 0, 0]),
        (places[2, 3, 0], places[0, 0, 0]),
    ):
        assert np.abs(each[now, before]).min() > 1e-7


def test_the_log_scales_are_those_of_the_jacobian():
    noise = noise_of()
    flowed = flow_of()(noise, condition_of(1, HEIGHT, WIDTH, 2))
    np.testing.assert_allclose(np.diag(jacobian()), np.exp(flowed.log_scale).ravel(), rtol=1e-4)
    own = noise * tf.exp(flowed.log_scale) + flowed.location
    np.testing.assert_allclose(own, flowed.output, atol=1e-5)


def test_the_inverse_gives_the_noise_back_and_the_density_is_that_of_its_noise():
    flow, condition, noise = flow_of(), condition_of(2, HEIGHT, WIDTH, 2), noise_of(2)
    flowed = flow(noise, condition)
    np.testing.assert_allclose(flow.inverse(flowed.output, condition), noise, atol=1e-4)
    of_noise = -noise - 2.0 * tf.math.softplus(-noise) - flowed.log_scale
    found = flow.log_density(flowed.output, condition)
    np.testing.assert_allclose(found, np.sum(of_noise, (1, 2, 3)), rtol=1e-4)


def test_an_image_whose_noise_is_not_found_has_no_density():
    """One of two images has its noise; the inverse of the other is put in error."""
    flow, condition, noise = flow_of(), condition_of(2, HEIGHT, WIDTH, 2), noise_of(2)
    values, inverse = flow(noise, condition).output, flow.inverse
    error = tf.constant([0.0, 0.5])[:, None, None, None]
    flow.inverse = lambda *given: inverse(*given) + error
    try:
        found = flow.log_density(values, condition)
        training = flow.log_density(values, condition, Mode(seed=tf.constant([1, 2])))
    finally:
        flow.inverse = inverse
    assert np.isfinite(found[0]) and np.isnan(found[1])
    assert np.isfinite(training).all()


@pytest.mark.slow
def test_the_noise_of_any_image_is_found_in_an_untrained_flow():
    """Far from noise, as images are then, each pass is thrown far off by what it waits for."""
    network = PixelCNNConfig(1, 16, 16)
    flow = ImageFlow(network, (3, 3), output_of("logistic", 3, 256), QuickInitial(0))
    values = value_of(image_of(1, 8, 8, 3, 256), 256)

    @tf.function(autograph=False)
    def found():
        with tf.GradientTape() as tape:
            nats = flow.log_density(values, NONE)
        again = flow(flow.inverse(values, NONE), NONE).output
        return again, nats, tape.gradient(nats, flow.trainable_variables)

    again, nats, gradients = found()
    np.testing.assert_allclose(again, values, atol=1e-3)
    assert np.isfinite(nats).all() and all(np.isfinite(g).all() for g in gradients)


def test_the_gradient_of_the_density_is_that_of_differences():
    """The inverse is found by iteration, through which no tape could tell the way."""
    flow, condition = flow_of(), condition_of(1, 2, 2, 2)
    values = tf.Variable(flow(noise_of(1, 2, 2), condition).output)
    weights = flow.trainable_variables
    with tf.GradientTape() as tape:
        nats = flow.log_density(values, condition)[0]
    gradients = tape.gradient(nats, [values, *weights])
    assert all(g is not None for g in gradients)

    def along(way, move):
        """The change of the density per unit of a way that `move` goes by so much of it."""
        ends = []
        for part in (STEP, -2 * STEP):
            move(part * way)
            ends.append(float(flow.log_density(values, condition)[0]))
        move(STEP * way)
        return (ends[0] - ends[1]) / (2 * STEP)

    draws = np.random.default_rng(5)
    for of in (values, flow.flows[0].left_kernel, flow.flows[1].output.kernel):
        way = draws.normal(size=of.shape).astype(np.float32)
        gradient = gradients[next(i for i, v in enumerate([values, *weights]) if v is of)]
        np.testing.assert_allclose(np.sum(gradient * way), along(way, of.assign_add), rtol=5e-2)


def test_the_bound_is_below_the_probability_of_an_image_and_near_it():
    """The probability of one grey pixel is known: the logistic's over its bin."""
    flow = flow_of((1,), 1, 0, 64)
    noise = tf.zeros([1, 1, 1, 1])
    flowed = flow(noise, NONE)
    levels = tf.range(64)[:, tf.newaxis, tf.newaxis, tf.newaxis]
    edges = (2.0 * np.arange(65) - 1) / 63 - 1.0
    at = (edges - float(flowed.location[0, 0, 0, 0])) / np.exp(float(flowed.log_scale[0, 0, 0, 0]))
    below = 1 / (1 + np.exp(-at))
    below[0], below[-1] = 0.0, 1.0
    seeds = np.stack(np.meshgrid(range(64), range(40)), -1).reshape(-1, 2).astype(np.int32)
    nats = flow.nats(tf.tile(levels, [40, 1, 1, 1]), NONE, seeds=seeds)
    bound = np.mean(np.reshape(nats, [40, 64]), 0)
    exact = np.log(np.diff(below))
    np.testing.assert_allclose(bound[1:-1], exact[1:-1], atol=0.03)  # of 40 places in a bin
    assert exact[0] - bound[0] > 0.5 and exact[-1] - bound[-1] > 0.5


def flowing_model(base_size=2, size=4):
    config = MultiscaleConfig(base_size, CONFIG, base_flows=(1, 1))
    return perturbed(Multiscale(config, size, output_of(), QuickInitial(0), 2), 0.1)


def inputs_of(model, rows, labels, size=4, guidance=None):
    words = pixel_words(model, 5, rows, size**2)
    condition = Condition(tf.one_hot(labels, 2))
    return SamplingInputs(words, condition, tf.ones([len(model.sizes)]), guidance)


def test_an_image_is_the_same_in_any_batch_its_base_the_nearest_levels_and_that_of_its_twin():
    model = flowing_model()
    both = sample_scales(model, inputs_of(model, [4, 7], [0, 1]), 4)
    for row, (name, label) in enumerate([(4, 0), (7, 1)]):
        alone = sample_scales(model, inputs_of(model, [name], [label]), 4)
        for scale, own in zip(both, alone, strict=True):
            np.testing.assert_array_equal(scale[row], own[0])
    np.testing.assert_array_equal(both[1][:, ::2, ::2], both[0])
    assert len(np.unique(both[1])) > 3
    twins = sample_scales(model, inputs_of(model, [4, 4], [0, 1], guidance=2.0), 4)
    for scale in twins:
        np.testing.assert_array_equal(scale[0], scale[1])
    np.testing.assert_array_equal(twins[0][0], both[0][0])


def test_a_model_may_be_all_flow():
    model = flowing_model(4, 4)
    assert model.parts == ("4",) and model.noise_words == 1
    (image,) = sample_scales(model, inputs_of(model, [0, 1], [0, 1]), 4)
    assert image.shape == [2, 4, 4, 1]
    nats = model.nats(image_of(2, 4, 4), Condition(tf.one_hot([0, 1], 2)))
    assert nats.keys() == {"4"} and np.isfinite(nats["4"]).all()
