"""Laws of every density of images: a PixelCNN, and multiscale models of both types of factors."""

import numpy as np
import pytest
import tensorflow as tf
from image_networks import (
    QuickInitial,
    condition_of,
    every_image,
    image_of,
    multiscale_of,
    output_of,
    pixelcnn_of,
    total_probability,
)
from marks import some_slow

from pixelcnn.config import ConditioningConfig
from pixelcnn.data.captions import encode_caption
from pixelcnn.networks.layers import EXACT, NONE, Condition, Conditioner, Mode

KINDS = ("pixelcnn", "A", "B")
A_SLOW = some_slow(KINDS, ("A",))


def density_of(kind, size=8, output=None, vector=0, map_=0, amount=0.4, **fields):
    """A function of images, a condition and a mode to the nats of every part, and its network."""
    if kind == "pixelcnn":
        network = pixelcnn_of(output, vector, map_, amount, **fields)

        def nats(*given):
            return {"whole": network.conditionals(*given).nats()}

        return nats, network
    model = multiscale_of(kind, size, output, vector, map_, amount, **fields)
    return model.nats, model


@pytest.mark.parametrize(
    ("kind", "size", "output"),
    [
        *(("pixelcnn", 2, (name, 1, 4)) for name in ("logistic", "softmax")),
        *(("pixelcnn", 2, (name, 3, 2)) for name in ("logistic", "softmax")),
        # The groups of both types: test_multiscale.py.
        ("B", 4, ("logistic", 1, 2)),
    ],
)
def test_probabilities_of_all_images_sum_to_one(kind, size, output):
    small = {} if kind == "pixelcnn" else {"blocks": 1, "output_units": 8}
    nats, _ = density_of(kind, size, output_of(*output), amount=1.0, **small)
    images = every_image(size, size, *output[1:])
    total = total_probability(lambda part: sum(nats(part, NONE).values()), images)
    assert total == pytest.approx(1, abs=2e-5)


@pytest.mark.parametrize("kind", A_SLOW)
def test_a_vector_and_a_map_move_every_part(kind):
    nats, _ = density_of(kind, vector=3, map_=2)
    one, other = (condition_of(2, 8, 8, 3, 2, seed) for seed in (1, 2))
    found = nats(image_of(2, 8, 8), one)
    for mixed in (Condition(other.vector, one.map), Condition(one.vector, other.map)):
        for part, moved in nats(image_of(2, 8, 8), mixed).items():
            assert (moved != found[part]).numpy().all()


@pytest.mark.parametrize("kind", KINDS)
def test_every_weight_learns_the_conditioner_included(kind):
    conditioner = Conditioner(ConditioningConfig("text", text_channels=4), QuickInitial(1))
    fields = {"dropout": 0.3} | ({"units": 8} if kind == "pixelcnn" else {})
    output = output_of("softmax" if kind == "pixelcnn" else "logistic", 3)
    nats, network = density_of(kind, 4, output, conditioner.vector_channels, **fields)
    captions = ["one", "another", "a third", "no other"]
    batch = {"caption": tf.stack([encode_caption(caption) for caption in captions])}
    with tf.GradientTape() as tape:
        each = nats(image_of(4, 4, 4, 3), conditioner(batch), Mode(seed=[1, 2]))
        loss = -tf.add_n([tf.reduce_mean(part) for part in each.values()])
    variables = [*network.trainable_variables, *conditioner.trainable_variables]
    assert len(variables) > len(network.trainable_variables)
    for variable, slope in zip(variables, tape.gradient(loss, variables), strict=True):
        slope = tf.convert_to_tensor(slope)
        assert np.isfinite(slope).all() and np.abs(slope).max() > 0, variable.name


@pytest.mark.parametrize("kind", A_SLOW)
def test_dropout_is_a_function_of_its_seed_and_absent_without(kind):
    nats, _ = density_of(kind, 4, dropout=0.5)
    modes = [EXACT, EXACT, Mode(seed=[1, 2]), Mode(seed=[1, 2]), Mode(seed=[3, 2])]
    found = [nats(image_of(2, 4, 4), NONE, mode) for mode in modes]
    for part in found[0]:
        exact, again, dropped, redropped, other = (each[part].numpy() for each in found)
        np.testing.assert_array_equal(exact, again)
        np.testing.assert_array_equal(dropped, redropped)
        assert (exact != dropped).any() and (dropped != other).any()


@pytest.mark.parametrize("kind", A_SLOW)
def test_half_the_digits_change_the_density_by_little(kind):
    output = output_of("softmax", 3, 16) if kind == "pixelcnn" else None
    nats, network = density_of(kind, output=output, vector=2, map_=2)
    image = image_of(2, 8, 8, *((3, 16) if kind == "pixelcnn" else ()))
    condition = condition_of(2, 8, 8, 2, 2)
    exact, rough = (nats(image, condition, mode) for mode in (EXACT, Mode(tf.bfloat16)))
    for part, value in exact.items():
        assert rough[part].dtype == tf.float32
        assert 0 < np.abs(value - rough[part]).max() < 0.02 * np.abs(value).max()
    if kind == "pixelcnn":
        linear = [network(image, condition, mode).prediction for mode in (EXACT, Mode(tf.bfloat16))]
        np.testing.assert_array_equal(*linear)
