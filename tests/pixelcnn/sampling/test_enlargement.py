"""A photograph of any shape is enlarged in tiles, which change neither its pixels nor its law."""

import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf
from image_networks import multiscale_of, output_of
from marks import some_slow

from onepass.likelihoods.noise import as_key
from pixelcnn.density import SamplingInputs, pixel_words, sample_scales, temperatures_of
from pixelcnn.networks.layers import NONE
from pixelcnn.sampling.enlargement import Enlarger

SIZE, SEED, ROW = 32, 5, 3
WHOLE = 64  # a tile that holds every group


@pytest.fixture(autouse=True)
def eagerly(monkeypatch):
    """Nothing is compiled; `tests/pixelcnn/test_enlarge_command.py` compiles."""
    monkeypatch.setattr(tf, "function", lambda function, **options: function)


@functools.cache
def convolutional(kind):
    """Factors from 8 to 32 pixels without a base."""
    parts = tuple(f"{size}.{group}" for size in (16, 32) for group in (2, 3, 4))
    return multiscale_of(
        kind, SIZE, output_of("logistic", 3, 16), parts=parts, coordinates=False, blocks=1,
        base_size=8,
    )  # fmt: skip


def photograph(height, width):
    """Noise, [height, width, 3]."""
    return np.random.default_rng(7).integers(16, size=[height, width, 3])


def enlarged(kind, image, tile=WHOLE, size=SIZE, row=ROW, temperature=1.0, advance=lambda: None):
    """Return all scales of an image."""
    heat = temperatures_of(temperature, 3).numpy()
    enlarger = Enlarger(convolutional(kind), tile)
    return list(enlarger.scales(image, size, as_key(SEED), row, heat, advance))


@functools.cache
def warm():
    """Return all scales of a photograph at temperature 1."""
    return enlarged("A", photograph(6, 8), temperature=(1.0, 1.0, 1.0))


@pytest.mark.parametrize(
    ("kind", "shape", "size", "tiles"),
    some_slow(
        [("A", (8, 8), 32, (4, 6)), ("A", (5, 8), 32, (6,)), ("B", (8, 3), 16, (4,))],
        [("A", (8, 8), 32, (4, 6))],
    ),
)
def test_tiles_of_any_side_lead_to_the_same_image(kind, shape, size, tiles):
    image = photograph(*shape)
    whole = enlarged(kind, image, size=size)
    times = (1, 2, 4)[: len(whole)]
    assert [scale.shape for scale in whole] == [(k * shape[0], k * shape[1], 3) for k in times]
    assert max(whole[-1].shape) == size
    for tile in tiles:
        for expected, found in zip(whole, enlarged(kind, image, tile, size), strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "size"), [("A", 32), ("B", 16)])
def test_a_square_is_enlarged_to_the_scales_that_the_whole_sampler_draws(kind, size):
    model, start = convolutional(kind), photograph(8, 8)
    words = pixel_words(model, SEED, [ROW], size**2)
    inputs = SamplingInputs(words, NONE, temperatures_of(1.0, 3))
    expected = sample_scales(model, inputs, size, tf.constant(start[np.newaxis], tf.int32))
    for image, found in zip(expected, enlarged(kind, start, 4, size), strict=True):
        np.testing.assert_array_equal(found, image[0])


def test_each_scale_contains_the_one_before_and_has_its_own_temperature():
    scales = warm()
    for small, large in itertools.pairwise(scales):
        np.testing.assert_array_equal(large[::2, ::2], small)
    assert (enlarged("A", photograph(6, 8), row=ROW + 1)[-1] != scales[-1]).any()
    mixed = enlarged("A", photograph(6, 8), temperature=(0.5, 1.0, 0.0))
    np.testing.assert_array_equal(mixed[1], scales[1])
    assert (mixed[2] != scales[2]).any()
    other_seed = enlarged("A", mixed[1], row=ROW + 1, temperature=(1.0, 1.0, 0.0))
    np.testing.assert_array_equal(other_seed[-1], mixed[2])  # a mode needs no noise


@pytest.mark.parametrize(("kind", "steps"), [("A", 0), ("B", 4)])
def test_passes_and_tiles_are_counted_as_they_are_made(kind, steps):
    seen = []
    image = photograph(8, 4)
    enlarged(kind, image, 4, size=16, advance=lambda: seen.append(1))
    work = Enlarger(convolutional(kind), 4).work(image.shape, 16)
    assert work == (3, steps, 3 * 2)
    assert Enlarger(convolutional(kind), 8).work(image.shape, SIZE).passes == 2 * 3
    assert len(seen) == work.tiles


def test_factors_with_coordinates_and_tiles_of_parts_of_patches_are_refused():
    with pytest.raises(ValueError, match="Only factors without coordinates enlarge images of any"):
        Enlarger(multiscale_of())
    with pytest.raises(ValueError, match="`tile` must be a multiple of 2, the patch, got 3"):
        Enlarger(convolutional("B"), 3)
