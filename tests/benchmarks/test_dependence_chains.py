"""`benchmarks.dependence_chains`: what changes what, and the longest chain of it."""

import types

import numpy as np
import pytest
import tensorflow as tf
from image_networks import output_of, pixelcnn_of

from benchmarks import dependence_chains as chains
from pixelcnn.density import image_words
from pixelcnn.model import sampler_of
from pixelcnn.networks.conditioning import NONE

SIDE = 5


def running_sum(images):
    """Every pixel is the one before it in its row plus one; the first of a row is 0."""
    drawn = np.zeros_like(images)
    drawn[:, :, 1:] = images[:, :, :-1] + 1
    return drawn


def test_the_longest_chain_is_found_among_shorter_ones():
    depends = np.zeros([6, 6], bool)
    for late, early in [(1, 0), (2, 0), (4, 2), (5, 4), (5, 0)]:
        depends[late, early] = True
    assert chains.longest_chain(depends) == 4  # 0, 2, 4, 5
    assert chains.longest_chain(np.zeros([3, 3], bool)) == 1


def test_a_change_is_seen_in_the_pixels_that_read_it():
    image = np.tile(np.arange(4), [3, 1])[..., np.newaxis]
    depends = chains.dependence(running_sum, image, image + 1)
    expected = np.zeros([12, 12], bool)
    for i in range(12):
        expected[i, i - 1] = i % 4 > 0
    np.testing.assert_array_equal(depends, expected)
    assert chains.longest_chain(depends) == 4


def test_a_change_by_one_level_stays_among_the_levels():
    np.testing.assert_array_equal(chains.one_level(np.array([0, 3, 4, 7]), 8), [1, 4, 3, 6])


@pytest.mark.parametrize("layers", [1, 2])
def test_no_pixel_of_a_network_changes_one_before_it(monkeypatch, layers):
    network = pixelcnn_of(output_of("logistic", 1, 16), layers=layers)
    words = image_words(network, 1, tf.constant([0]), SIDE, SIDE)
    image = sampler_of("fixed-point")(network, words, NONE).levels.numpy()
    model = types.SimpleNamespace(
        config=types.SimpleNamespace(conditioning=types.SimpleNamespace(classes=0)),
        network=types.SimpleNamespace(pixelcnn=network, conditioner=lambda given: NONE),
        sample=lambda num, seed, condition: np.repeat(image, num, 0),
        front=types.SimpleNamespace(
            condition=lambda value: {}, size=SIDE, channels=1, levels=16
        ),
    )  # fmt: skip
    draw = chains._draw(model, None, 1, 0)
    depends = chains.dependence(draw, image[0], chains.one_level(image[0], 16))
    assert depends.any()
    assert not np.triu(depends).any()
    one, another = list(chains.lines(model, 1, 1))
    assert one.startswith("| 0 | by one level | ") and another.startswith("| 0 | to another draw |")
    assert one.endswith(f" {chains.longest_chain(depends)} |")
