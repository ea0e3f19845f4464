"""Samplers by name: one registration reaches every model."""

import causal_networks
import numpy as np
import pytest
import tensorflow as tf
from image_densities import model_of

import onepass
from onepass.foundation.rules import UserError
from onepass.likelihoods import Gaussian
from onepass.samplers.fixed_point import empty_symbols
from onepass.samplers.registry import SAMPLERS, method
from pixelcnn.autoregression import autoregressive

LEVEL = 3


@pytest.fixture
def toy():
    """A sampler of every model that draws one level, whatever it is asked for."""

    @method("toy")
    def sampler(network, distribution, noise, condition=None, temperature=1.0, prompt=None):
        symbols = empty_symbols(distribution, noise) + LEVEL
        return symbols if prompt is None else prompt.over(symbols, 0)

    yield
    del SAMPLERS["toy"]


def test_one_registration_reaches_an_array_model(toy):
    model = onepass.Autoregressive(causal_networks.skewed_attention(4, 2), Gaussian(levels=64))
    drawn = model.symbols(model.sample(2, 9, seed=1, method="toy"))
    np.testing.assert_array_equal(drawn, np.full([2, 9], LEVEL))


def test_it_reaches_a_model_of_sound_and_one_of_images(toy):
    sound = onepass.load("shipped-teacher")
    frames = np.full([2, sound.network.config.feature_channels], 0.5, np.float32)
    drawn = sound.sample(2, 40, 1, frames, method="toy")
    level = sound.network.codec.decode(tf.constant([LEVEL])).numpy()
    np.testing.assert_array_equal(drawn, np.broadcast_to(level, [2, 40]))
    np.testing.assert_array_equal(
        sound.sample(condition=frames, length=40, method="toy"), drawn[:1]
    )
    images = onepass.load("shipped-digits-teacher")
    np.testing.assert_array_equal(
        images.sample(1, None, 1, 7, method="toy"), np.full([1, 32, 32, 3], LEVEL)
    )
    begun = np.full([40, 3], 9, np.uint8)
    drawn = images.sample(condition=7, method="toy", prefix=begun)[0].reshape(-1, 3)
    assert (drawn[:40] == 9).all() and (drawn[40:] == LEVEL).all()


def test_an_unknown_name_is_refused_with_the_known_ones():
    sound = onepass.load("shipped-teacher")
    known = "auto, cached, fixed-point, naive"
    for draw in (sound.sample, sound.stream):
        with pytest.raises(UserError, match=f"`method` must be one of {known}, speculative, got"):
            draw(length=4, method="cuda")
    student = onepass.load("shipped-kathleen")
    frames = np.zeros([2, student.network.config.feature_channels], np.float32)
    with pytest.raises(
        UserError, match="`method` must be one of auto, numba, numba-bfloat16, tensorflow, got"
    ):
        student.sample(condition=frames, method="cached")
    images = onepass.load("shipped-digits-teacher")
    with pytest.raises(UserError, match="`method` must be one of auto, cached, fixed-point, naive"):
        images.sample(1, None, 1, 7, method="numba")


def test_a_pixelcnn_of_classes_says_so_and_takes_the_method_that_auto_takes():
    model = autoregressive(model_of("PixelCNN").network)
    assert model.conditions == {"label": tf.TensorSpec([None], tf.int32)}
    drawn = [model.sample(1, (4, 4, 1), 1, 2, method=name) for name in ("auto", "cached")]
    np.testing.assert_array_equal(*drawn)
    with pytest.raises(ValueError, match="`condition` must be 0 to 2"):
        model.sample(1, (4, 4, 1), 1, 3)
    with pytest.raises(ValueError, match="`condition` must be given"):
        model.sample(1, (4, 4, 1), 1)
