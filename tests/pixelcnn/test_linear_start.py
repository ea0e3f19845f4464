"""The start of a PixelCNN: the regression that made the images is found, and is what is trained."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from image_runs import config_of, images, replaced

from onepass.likelihoods.noise import Initial
from onepass.replicator.training.state import TrainState
from pixelcnn.config import OutputConfig, PixelCNNConfig
from pixelcnn.data.dataset import ImageDataset
from pixelcnn.density import ImageDensity
from pixelcnn.linear_start import start_linearly, whiten
from pixelcnn.networks.layers import Condition
from pixelcnn.networks.pixelcnn import PixelCNN
from pixelcnn.training import start_density

ABOVE, LEFT, RED_TO_GREEN = 0.3, 0.4, 0.8
NOISE = 0.02  # scale of a logistic


def linear_images(count, side, channels):
    """Images whose pixels are known sums of those above and to the left, and of their own red."""
    draws = np.random.default_rng(3)
    values = np.zeros([count, side, side, channels])
    for row in range(side):
        for column in range(side):
            pixel = NOISE * draws.logistic(size=[count, channels])
            if row:
                pixel += ABOVE * values[:, row - 1, column]
            if column:
                pixel += LEFT * values[:, row, column - 1]
            for later in range(1, channels):
                pixel[:, later] += RED_TO_GREEN * pixel[:, 0]
            values[:, row, column] = pixel
    return np.clip(np.round((values + 1) * 127.5), 0, 255).astype(np.int32)


def network_of(channels, seed=0):
    config = PixelCNNConfig(layers=1, units=8, output_units=8, coordinates=False)
    return PixelCNN(config, OutputConfig(channels=channels, components=3), Initial(seed))


@pytest.fixture(scope="module", params=[1, 3], ids=["grey", "colour"])
def started(request):
    """A network that starts from images, its number of channels, and other images like them."""
    levels, network = linear_images(64, 16, request.param), network_of(request.param)
    start_linearly(network, levels[4:])
    return network, request.param, levels[:4]


def test_the_weights_that_made_the_images_are_found(started):
    network, channels, _ = started
    above, left = network.above_prediction.numpy(), network.left_prediction.numpy()
    each = [kernel.reshape(-1, channels + 1, channels) for kernel in (above, left)]
    kernel = np.concatenate(each)[:, :channels, 0]
    expected = np.zeros([24, channels])
    expected[2 * 7 + 3, 0], expected[3 * 7 + 2, 0] = ABOVE, LEFT
    np.testing.assert_allclose(kernel, expected, atol=0.08)
    # A colour depends on those before it: green on red, and blue on red and not on green.
    found = np.tanh(network.output.bias.numpy().reshape(-1, 3)[1 + 2 * channels :])
    for coefficients, wanted in zip(found, (RED_TO_GREEN, RED_TO_GREEN, 0.0), strict=False):
        np.testing.assert_allclose(coefficients, wanted, atol=0.05)


def test_images_cost_little_more_bits_than_the_noise_in_them_and_all_layers_learn(started):
    network, _, levels = started
    with tf.GradientTape() as tape:
        parts = network.conditionals(tf.constant(levels), Condition(None, None))
        nats = tf.reduce_sum(parts.nats())
    entropy = np.log(NOISE * 127.5) + 2.0  # of a logistic, in levels
    assert entropy - 0.05 < -float(nats) / levels.size < entropy + 0.2
    for gradient in tape.gradient(nats, network.trainable_variables):
        assert np.any(tf.convert_to_tensor(gradient))


def test_filters_of_whitened_pixels_have_the_moments_of_filters_of_white_noise():
    draws = np.random.default_rng(1)
    kernel = draws.normal(size=[2, 3, 5]).astype(np.float32)
    directions, _ = np.linalg.qr(draws.normal(size=[6, 6]))
    inputs = draws.normal(size=[4000, 6]) * [3.0, 1.0, 0.5, 0.3, 0.2, 0.2] @ directions
    variable = tf.Variable(kernel)
    whiten(variable, inputs)
    outputs = inputs @ variable.numpy().reshape(6, 5)
    flat = kernel.reshape(6, 5)
    np.testing.assert_allclose(outputs.T @ outputs / 4000, flat.T @ flat, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("likelihood", ["logistic", "softmax"])
def test_training_starts_with_weights_and_averages_of_the_regression_but_for_a_softmax(
    likelihood, eager
):
    config = replaced(config_of("pixelcnn"), output={"likelihood": likelihood})
    dataset = ImageDataset.read(images(), config)
    dataset = dataclasses.replace(dataset, config=dataset.resolved_config)
    density = ImageDensity(dataset.config)
    state = TrainState(density, config.optimizer, 3)
    batch = next(iter(dataset.dev(1000)))
    before, weights = np.mean(density.nats(batch)["8"]), [w.numpy() for w in state.weights]
    start_density(density, state, dataset)
    for weight, average in zip(state.weights, state.average, strict=True):
        np.testing.assert_array_equal(weight, average)
    if likelihood == "logistic":
        assert np.mean(density.nats(batch)["8"]) > before + 8 * 8 * 0.5
    else:
        for weight, value in zip(state.weights, weights, strict=True):
            np.testing.assert_array_equal(weight, value)
