"""Compressed images come back exactly from whatever nearly equal network, or not at all."""

import functools
import math

import hostile_files
import numpy as np
import pytest
import tensorflow as tf
from hostile_files import refused
from image_densities import ARCHITECTURES, conditions_for, images_for, model_of
from marks import some_slow
from runs import eagerly

from onepass.compression import container, odds
from onepass.compression.conditionals import Coding, decode
from onepass.compression.stream import odds_of
from pixelcnn import compression
from pixelcnn.compression import ImageConditionals, MixturePixels, SoftmaxPixels
from pixelcnn.networks.layers import Hidden


@functools.cache
def known(architecture):
    """A model that nobody changes, whose programs are traced once."""
    return model_of(architecture)


def off(outputs, relative, draws):
    return outputs * (1.0 + relative * np.clip(draws.normal(size=outputs.shape), -1.0, 1.0))


def all_off(outputs, relative, draws):
    """The function of a last layer, whose outputs are off."""
    return lambda *arguments: off(outputs(*arguments), relative, draws)


@functools.cache
def compressed(architecture):
    """Three images, and the file of them."""
    model = known(architecture)
    images = images_for(model, 3)
    return images, model.compress(images, conditions_for(model, 3), batch=2, verify=False)


@pytest.mark.parametrize("off_by", ["a hundred thousandth", "what float32 leaves open"])
@pytest.mark.parametrize(
    "architecture",
    some_slow(ARCHITECTURES, ("PixelCNN", "PixelCNN, softmax", "multiscale B, captions")),
)
def test_images_come_back_exactly_although_outputs_or_hidden_units_are_off(
    architecture, off_by, monkeypatch
):
    (images, data), model = compressed(architecture), known(architecture)
    draws, mapped = np.random.default_rng(7), model.network.conditioner.map_channels > 0
    pixels = ImageConditionals.pixels

    def moved(conditionals, name, hidden, coding):
        units = off(np.asarray(hidden.units, np.float64), 3e-7, draws)
        prediction = off(np.asarray(hidden.prediction), 3e-7 * mapped, draws)
        return pixels(conditionals, name, Hidden(units, prediction), coding)

    if off_by == "a hundred thousandth":
        for kind in (MixturePixels, SoftmaxPixels):
            outputs = staticmethod(all_off(kind.outputs, 1e-5, draws))
            monkeypatch.setattr(kind, "outputs", outputs)
    else:
        monkeypatch.setattr(ImageConditionals, "pixels", moved)
    found = model.decompress(data)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, images)


def test_without_a_tolerance_the_same_outputs_are_refused_not_decoded_to_noise(monkeypatch):
    model = known("multiscale A, colour")
    images = images_for(model, 24)
    data = model.compress(images, 1, tolerance=0.0, verify=False)
    np.testing.assert_array_equal(model.decompress(data), images)
    conditionals = model.compressed.conditionals  # three passes a doubling besides its base
    assert (conditionals.passes, conditionals.steps) == (3, 4 * 4)
    moved = all_off(MixturePixels.outputs, 1e-3, np.random.default_rng(7))
    monkeypatch.setattr(MixturePixels, "outputs", staticmethod(moved))
    assert "differ from those of the encoder" in refused(model.decompress, data)


def test_a_stream_takes_the_bits_of_the_model_and_half_a_per_cent():
    model = known("multiscale A, colour")
    shape, conditionals = (200, 8, 8, 3), model.compressed.conditionals
    layout = conditionals.layout(shape, {})
    words = np.random.default_rng(0).integers(1, 2**32, 40000, np.uint32).tobytes()
    table = bytes(layout.classes * layout.bits // 2)
    # Random bits decode to samples of the model.
    labels = {"label": np.ones(200, np.int32)}
    drawn = decode(conditionals, b"\x01\xff\xff" + table + words, shape, labels, Coding())
    images = drawn.astype(np.uint8)
    bits = -model.log_prob(images, 1).astype(np.float64).sum() / math.log(2)
    found = container.read(model.compress(images, 1, batch=200, verify=False))
    assert 0.999 < 8 * sum(map(len, found.streams)) / bits < 1.005


def test_another_model_refuses_the_file():
    model, moved = known("PixelCNN"), model_of("PixelCNN")
    data = model.compress(images_for(model, 2), 0)
    weight = moved.network.trainable_variables[0]
    weight.assign_add(1e-6 * tf.ones_like(weight))
    assert "requires the model" in refused(moved.decompress, data)


def test_the_condition_is_in_the_file():
    model = known("PixelCNN")
    data = model.compress(images_for(model, 3), ["cat", 2, "eel"], verify=False)
    assert container.read(data).description["condition"] == [0, 2, 2]
    assert model.compress(images_for(model, 3), np.array([0, 2, 2]), verify=False) == data
    one = container.read(model.compress(images_for(model, 3), "dog", verify=False))
    assert one.description["condition"] == [1]


def test_what_cannot_be_compressed_is_refused():
    model, flow = known("PixelCNN"), model_of("multiscale A, colour")
    images, flow.network.multiscale.has_flow = images_for(model, 2), True
    for given, options, line in (
        ((images[:, :4], 0), {}, "must be uint8 [num, 8, 8, 1]"),
        ((images / 255.0, 0), {}, "got float64"),
        ((images, [0, 1, 2]), {}, "`condition` must be one or 2, got 3"),
        ((images, "bird"), {}, "no class"),
        ((images, 0), {"tolerance": 1.0}, "`tolerance` must be between 0 and 0.001, got 1"),
        ((images, 0), {"batch": 0}, "`batch` must be an integer of at least 1, got 0"),
    ):
        assert line in refused(model.compress, *given, **options)
    assert "is a flow" in refused(flow.compress, images_for(flow, 1), 0)


# Architectures and the number of changed files; the first is the quickest.
HOSTILE = [("multiscale A, colour", 60), ("PixelCNN, maps", 5), ("multiscale B, captions", 5)]


@pytest.mark.parametrize(
    ("architecture", "count"),
    some_slow(HOSTILE, HOSTILE[1:]),
)
def test_a_file_with_wrong_fields_is_refused(architecture, count):
    images, data = compressed(architecture)
    decompress = known(architecture).decompress
    hostile_files.check(
        container.read(data), decompress, lambda found: np.array_equal(found, images), count
    )


def test_a_file_that_cannot_be_decoded_is_not_returned(monkeypatch):
    model, draws = known("PixelCNN"), np.random.default_rng(5)
    pixels = ImageConditionals.pixels
    with eagerly():
        images = model.sample(condition=2, seed=1, num=2)

    def moved(conditionals, name, hidden, coding):
        if coding.tolerance is None:  # in the decoder
            units = off(np.asarray(hidden.units, np.float64), 1.0, draws)
            hidden = Hidden(units, hidden.prediction)
        return pixels(conditionals, name, hidden, coding)

    monkeypatch.setattr(ImageConditionals, "pixels", moved)
    assert "could not be decoded again" in refused(model.compress, images, 2)
    assert model.compress(images, 2, verify=False)


@pytest.mark.parametrize("size", [1e-6, 1e-3, 0.3, 2.0])
def test_the_coefficients_of_channels_move_by_no_more_than_is_said(size):
    draws = np.random.default_rng(0)
    raw = draws.normal(size=1000) * draws.choice([0.01, 1.0, 10.0], 1000)
    most = compression.tanh_off(raw, np.full(1000, size))
    for sign in (-1.0, 1.0):
        assert np.all(np.abs(np.tanh(raw + sign * size) - np.tanh(raw)) <= most + 1e-15)


@pytest.mark.parametrize("tolerance", [1e-5, 1e-3, 1e-2])
def test_no_corner_of_a_pixels_outputs_moves_odds_by_more_than_their_margin(tolerance, monkeypatch):
    output = known("multiscale A, colour").network.multiscale.base.output
    draws, parameters = np.random.default_rng(0), output.likelihood.num_parameters
    outputs = draws.normal(size=[100, parameters]) * 3.0
    hidden = Hidden(np.zeros([100, output.hidden_units]), draws.normal(size=[100, 3]) * 0.2)
    levels = draws.integers(0, 256, [100, 3])

    def odds_of_channels(given, allowed):
        monkeypatch.setattr(MixturePixels, "outputs", staticmethod(lambda *_: given))
        pixels, found, before = MixturePixels(output, hidden, allowed), [], None
        for channel in range(3):
            distribution = pixels.next_channel(before)
            before = levels[:, channel]
            found.append(odds_of(distribution, before, 8))
        return found

    right, by = odds_of_channels(outputs, tolerance), odds.tolerances(outputs, tolerance)
    for signs in (1.0, -1.0, *draws.choice([-1.0, 1.0], [20, *outputs.shape])):
        for one, other in zip(right, odds_of_channels(outputs + signs * by, None), strict=True):
            assert np.all(np.abs(one.t - other.t) <= one.margin)
