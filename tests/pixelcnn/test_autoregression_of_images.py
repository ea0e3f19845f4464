"""A PixelCNN through the library's own parts: the same seed, the same images."""

import image_densities
import numpy as np
import pytest
import tensorflow as tf
from marks import some_slow

import onepass
from onepass.foundation.rules import UserError
from onepass.interface import Draw
from pixelcnn.autoregression import autoregressive
from pixelcnn.config import OutputConfig
from pixelcnn.model import ImageSampler

SIZE, SEED, LABELS = 5, 3, np.array([2, 0], np.int32)
METHODS = ("auto", "fixed-point", "naive")


def density_of(likelihood, channels):
    output = OutputConfig(likelihood, 256, channels, components=2, softmax_units=7)
    return image_densities.density_of(SIZE, output=output, amount=0.4)


def drawn_by(density, sampler):
    draw = ImageSampler(density)
    requests = [
        Draw(1, SIZE, SEED, {"label": LABELS[row : row + 1]}, sampler, row=row) for row in range(2)
    ]
    return np.stack([next(draw.images(request))[-1] for request in requests])


@pytest.mark.parametrize(
    ("likelihood", "channels", "methods"),
    some_slow(
        [("logistic", 3, METHODS[:2]), ("logistic", 3, METHODS[2:]), ("softmax", 1, METHODS)],
        [("logistic", 3, METHODS[2:]), ("softmax", 1, METHODS)],
    ),
)
def test_every_method_draws_the_images_of_the_sampler(likelihood, channels, methods):
    density = density_of(likelihood, channels)
    expected = drawn_by(density, "cached")
    assert len(np.unique(expected)) > 5
    model, shape = autoregressive(density), (SIZE, SIZE, channels)
    for method in methods:
        images = model.sample(2, shape, SEED, {"label": LABELS}, method=method)
        np.testing.assert_array_equal(images, expected)


@pytest.mark.parametrize(("likelihood", "channels"), [("logistic", 3), ("softmax", 1)])
def test_log_probabilities_are_those_of_the_density(likelihood, channels):
    density = density_of(likelihood, channels)
    images = np.random.default_rng(1).integers(0, 256, [2, SIZE, SIZE, channels]).astype(np.int32)
    batch = {"levels": tf.constant(images), "label": tf.constant(LABELS)}
    expected = density.nats(batch)[str(SIZE)]
    found = autoregressive(density).log_prob(images, {"label": LABELS})
    np.testing.assert_allclose(tf.reduce_sum(found, [1, 2]), expected, rtol=1e-5)


def test_it_is_stored_in_a_model_folder_alone(tmp_path):
    with pytest.raises(UserError, match="is stored in its own model folder"):
        onepass.save(autoregressive(density_of("softmax", 1)), tmp_path / "model")
