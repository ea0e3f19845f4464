"""A PixelCNN is an exact density: normalised, causal without blind spots, ordered R, G, B."""

import numpy as np
import pytest
import tensorflow as tf
from image_networks import (
    QuickInitial,
    condition_of,
    every_image,
    image_of,
    output_of,
    perturbed,
    pixelcnn_of,
)
from scipy import special

from onepass.likelihoods import noise
from pixelcnn.autoregression import context_rows
from pixelcnn.config import PixelCNNConfig
from pixelcnn.networks.layers import EXACT, NONE, Condition, Hidden, Mode, make_output
from pixelcnn.networks.pixelcnn import FRONT_COLUMNS, FRONT_REACH, FRONT_ROWS, PixelCNN

COLOURS = every_image(1, 1, 3, 4).reshape(-1, 3)
UNITS = 6


def colour_output():
    """A softmax of three channels of four levels, and hidden units [units], to go with it."""
    draws = np.random.default_rng(3)
    output = make_output(output_of("softmax", 3, 4), UNITS, QuickInitial(0))
    units = draws.normal(size=UNITS).astype(np.float32)
    return perturbed(output, 1.0), Hidden(units, np.array([0.2, -0.3, 0.1], np.float32))


def of_colours(output, hidden):
    """Nats [4, 4, 4] of every red, green and blue, under the same hidden units."""
    wide = Hidden(*(tf.broadcast_to(x, [len(COLOURS), *x.shape]) for x in hidden))
    return tf.reshape(output.log_prob(wide, tf.constant(COLOURS)), [4, 4, 4])


def reads_values(network):
    """Makes the network read real values [batch, height, width, channels] in place of levels."""
    network.inputs = lambda values: tf.concat([values, tf.ones_like(values[..., :1])], -1)
    return network


def gradients_of_pixels(network, height, width, part):
    """[pixels, height, width], how each pixel's `part` of `Hidden` moves with each pixel."""
    pixels, channels = height * width, network.output_config.channels
    draws = np.random.default_rng(0)
    values = draws.uniform(-1, 1, [1, height, width, channels]).astype(np.float32)
    values = tf.repeat(values, pixels, 0)
    with tf.GradientTape() as tape:
        tape.watch(values)
        known = getattr(network(values, NONE), part)
        known = tf.reshape(known, [pixels, pixels, -1])
        weights = draws.normal(size=known.shape[-1]).astype(np.float32)
        own = tf.linalg.diag_part(tf.reduce_sum(known * weights, -1))
    return np.abs(tape.gradient(own, values)).max(-1)


def reach_of(height, width, rows, columns, left):
    """bool [pixels, height, width]: the pixels above, within a reach, and so many to the left."""
    y, x = np.divmod(np.arange(height * width), width)
    down, right = np.subtract.outer(y, y), np.subtract.outer(x, x)
    above = (down >= 1) & (down <= rows) & (np.abs(right) <= columns)
    sideways = (down == 0) & (right >= 1) & (right <= left)
    return (above | sideways).reshape(-1, height, width)


@pytest.mark.parametrize("part", Hidden._fields)
@pytest.mark.parametrize(("channels", "dilations"), [(1, (1,)), (3, (1,)), (1, (2, 1))])
def test_a_pixel_reads_every_pixel_before_it_and_no_other(channels, dilations, part):
    layers = 3 if part == "units" else 1
    network = pixelcnn_of(output_of(channels=channels), layers=layers, dilations=dilations)
    gradients = gradients_of_pixels(reads_values(network), 7, 7, part)
    before = np.tril(np.ones([49, 49], bool), -1).reshape(49, 7, 7)
    if part == "prediction":
        before &= reach_of(7, 7, FRONT_ROWS, FRONT_REACH, FRONT_COLUMNS)
    assert (gradients[~before] == 0).all()
    assert (gradients[before] > 0).all()


def test_layers_widen_what_is_read_by_their_dilations_and_leave_no_gap():
    gradients = gradients_of_pixels(reads_values(pixelcnn_of(layers=1)), 6, 11, "units")
    expected = reach_of(6, 11, FRONT_ROWS + 1, FRONT_REACH + 1, FRONT_COLUMNS + 1)
    np.testing.assert_array_equal(gradients > 0, expected)
    network = pixelcnn_of(layers=3, dilations=(1, 2, 4), amount=1.0)
    gradients = gradients_of_pixels(reads_values(network), 12, 12, "units")
    reach = FRONT_ROWS + 7
    assert reach == FRONT_REACH + 7 == FRONT_COLUMNS + 7 == context_rows(network)
    np.testing.assert_array_equal(gradients > 0, reach_of(12, 12, reach, reach, reach))


def test_levels_are_read_as_values_from_minus_one_to_one():
    network, image = pixelcnn_of(output_of(levels=5)), image_of(2, 4, 4, levels=5)
    values = tf.cast(image, tf.float32) / 2.0 - 1.0
    expected = network(image, NONE)
    for one, other in zip(expected, reads_values(network)(values, NONE), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_a_softmax_follows_its_formula_and_is_drawn_as_often():
    output, hidden = colour_output()
    read = np.concatenate([hidden.units, hidden.prediction])
    expected = np.zeros([4, 4, 4])
    for colour in np.ndindex(4, 4, 4):
        for c in range(3):
            inside = read @ output.hidden_kernels[c].numpy() + output.hidden_biases[c].numpy()
            for d in range(c):
                inside = inside + output.embeddings[c][d].numpy()[0, colour[d]]
            logits = np.maximum(inside, 0) @ output.kernels[c].numpy() + output.biases[c].numpy()
            expected[colour] += special.log_softmax(logits)[colour[c]]
    np.testing.assert_allclose(of_colours(output, hidden), expected, atol=1e-5)
    count = 40_000
    words = noise.words(5, [2], 0, count, output.noise_words)[0]
    wide = Hidden(*(tf.broadcast_to(x, [count, *x.shape]) for x in hidden))
    drawn = output.sample(wide, words).numpy()
    numbers, often = np.bincount(drawn @ [16, 4, 1], minlength=64), count * np.exp(expected).ravel()
    likely = often > 5
    distance = np.square(numbers - often)[likely] / often[likely]
    assert distance.sum() < likely.sum() + 4 * np.sqrt(2 * likely.sum())


def test_a_mixture_moves_with_the_prediction():
    output = perturbed(make_output(output_of(levels=21), UNITS, QuickInitial(0)), 1.0)
    units = tf.random.stateless_normal([19, UNITS], [1, 2])
    one = output.log_prob(Hidden(units, tf.zeros([19, 1])), tf.fill([19, 1], 9))
    moved = output.log_prob(Hidden(units, tf.fill([19, 1], 0.4)), tf.fill([19, 1], 13))
    np.testing.assert_allclose(one, moved, atol=1e-5)
    assert np.ptp(one) > 0.1


def test_the_untrained_prediction_is_the_mean_of_above_and_left():
    network = PixelCNN(PixelCNNConfig(1, 4, 4), output_of(channels=3), QuickInitial(0))
    image = image_of(1, 5, 5, 3)
    value = 2 * image[0].numpy() / 7 - 1
    prediction = network(image, NONE).prediction[0]
    expected = (value[:-1, 1:] + value[1:, :-1]) / 2
    np.testing.assert_allclose(prediction[1:, 1:], expected, atol=1e-6)


def test_the_prediction_alone_is_that_of_a_call():
    network = pixelcnn_of(output_of(channels=3), map_=2)
    image, condition = image_of(2, 5, 6, 3), condition_of(2, 5, 6, 0, 2)
    found = network.prediction(image, network.add_coordinates(condition, image))
    np.testing.assert_array_equal(found, network(image, condition).prediction)


def test_a_vector_reaches_all_pixels_and_a_map_its_own_one_and_its_prediction():
    network, vector = pixelcnn_of(vector=3), condition_of(2, 3, 4, 3).vector
    other = vector + np.float32([[0], [1]])  # of the second image
    image = image_of(2, 3, 4)
    one, moved = (network(image, Condition(v, None)).units for v in (vector, other))
    changed = (one != moved).numpy().any(-1)
    assert not changed[0].any() and changed[1].all()
    # With one layer, a pixel reads the map of its own pixel alone.
    network, map_ = pixelcnn_of(map_=2, layers=1), condition_of(12, 3, 4, 0, 2).map[:1]
    image, map_ = (tf.repeat(x, 12, 0) for x in (image[:1], map_))
    here = np.eye(12, dtype=np.float32).reshape(12, 3, 4, 1)
    one, moved = (network(image, Condition(None, m)) for m in (map_, map_ + here))
    for before, after in zip(one, moved, strict=True):
        changed = (before != after).numpy().any(-1).reshape(12, 12)
        np.testing.assert_array_equal(changed, np.eye(12, dtype=bool))


def test_coordinates_tell_rows_and_columns_apart_and_without_them_the_border_alone():
    network = pixelcnn_of(coordinates=True)
    map_ = network.add_coordinates(NONE, image_of(1, 2, 4)).map[0]
    np.testing.assert_allclose(map_[..., 0], [[-0.5] * 4, [0.5] * 4])
    np.testing.assert_allclose(map_[..., 1], [[-0.75, -0.25, 0.25, 0.75]] * 2)
    image = tf.fill([1, 20, 20, 1], 3)
    for coordinates in (False, True):
        units = pixelcnn_of(coordinates=coordinates, layers=1)(image, NONE).units[0]
        same = np.allclose(units[8:12, 8:12], units[8, 8], atol=1e-6)
        assert same is not coordinates
        assert not np.allclose(units[8, 0], units[8, 10], atol=1e-3)


def test_every_place_drops_units_of_its_own_and_keeps_the_mean():
    mode, units = Mode(seed=tf.constant([7, 5])), tf.ones([20_000])
    first, other = (mode.dropout(units, 0.25, place).numpy() for place in (0, 1))
    np.testing.assert_allclose(np.unique(first), [0, 4 / 3], rtol=1e-6)
    assert first.mean() == pytest.approx(1, abs=0.02)
    both = ((first == 0) & (other == 0)).mean()
    assert both == pytest.approx(0.25**2, abs=0.01)
    assert EXACT.dropout(units, 0.25, 0) is units
