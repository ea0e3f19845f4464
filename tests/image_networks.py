"""Tiny image models of every kind, their weights far enough from the start to matter."""

import functools
import itertools

import numpy as np
import tensorflow as tf

from onepass.likelihoods.noise import Initial
from pixelcnn.config import FactorConfig, MultiscaleConfig, OutputConfig, PixelCNNConfig
from pixelcnn.density import Factor, Multiscale
from pixelcnn.networks.layers import Condition
from pixelcnn.networks.pixelcnn import PLACE, PixelCNN

LAYERS, UNITS, OUTPUT_UNITS = 2, 6, 20  # of these, ReLUs leave about half


class QuickInitial(Initial):
    """Kernels as large as those of `Initial`, without the time that its cipher takes."""

    def kernel(self, shape, name, gain=1.0):
        self._drawn += 1
        draws = np.random.default_rng([self._seed, self._drawn]).normal(size=shape)
        draws *= gain / np.sqrt(np.prod(shape[:-1]))
        return tf.Variable(draws.astype(np.float32), name=name)


def perturbed(module, amount=0.4):
    """The module, every variable of it moved by noise, kernels in proportion to their fan-in."""
    draws = np.random.default_rng(99)
    for variable in module.trainable_variables:
        shape = variable.shape.as_list()
        moves = draws.normal(size=shape) * amount / np.sqrt(np.prod(shape[:-1]))
        variable.assign_add(moves.astype(np.float32))
    return module


def output_of(likelihood="logistic", channels=1, levels=8):
    return OutputConfig(likelihood, levels, channels, components=3, softmax_units=7)


def pixelcnn_of(output=None, vector=0, map_=0, amount=0.4, **config):
    """A PixelCNN of two layers, or of what the configuration says."""
    config = dict(layers=LAYERS, units=UNITS, output_units=OUTPUT_UNITS) | config
    network = PixelCNN(
        PixelCNNConfig(**config), output or output_of(), QuickInitial(0), vector, map_
    )
    return perturbed(network, amount)


# Networks that samplers are tested with.
KINDS = {
    "grey mixture, conditioned": dict(output=("logistic", 1, 256), vector=3, map_=2),
    "colour mixture": dict(output=("logistic", 3, 256), layers=1),
    "grey mixture, dilated": dict(output=("logistic", 1, 256), dilations=(2, 1)),
    "grey softmax, without coordinates": dict(output=("softmax", 1, 16), coordinates=False),
    "colour softmax, conditioned": dict(output=("softmax", 3, 16), layers=1, vector=2, map_=1),
}


@functools.cache
def network_of(kind):
    fields = dict(KINDS[kind])
    return pixelcnn_of(output_of(*fields.pop("output")), **fields)


def factor_config(kind="A", **config):
    small = dict(blocks=2, units=UNITS, output_units=OUTPUT_UNITS)
    shallow = dict(patch=2, shallow_layers=1, shallow_units=4)
    return FactorConfig(kind, **(small | shallow | config))


def factor_of(group, kind="A", output=None, map_=PLACE, amount=0.4, **config):
    config = factor_config(kind, **config)
    return perturbed(Factor(group, config, output or output_of(), QuickInitial(0), 0, map_), amount)


def multiscale_of(
    kind="A", size=8, output=None, vector=0, map_=0, amount=0.4, crop=0, base_size=2, **fields
):
    """A multiscale model that doubles an image of `base_size` until it has `size`."""
    parts = fields.pop("parts", None)
    base = PixelCNNConfig(LAYERS, UNITS, OUTPUT_UNITS, fields.get("dropout", 0.0))
    config = MultiscaleConfig(base_size, base, factor_config(kind, **fields), crop)
    output = output or output_of()
    model = Multiscale(config, size, output, QuickInitial(0), vector, map_, parts)
    return perturbed(model, amount)


def condition_of(batch, height, width, vector=0, map_=0, seed=2):
    """A condition of normal numbers, its parts None where they have no channels."""
    draws = np.random.default_rng(seed)
    one = draws.normal(size=[batch, vector]).astype(np.float32) if vector else None
    other = draws.normal(size=[batch, height, width, map_]).astype(np.float32) if map_ else None
    return Condition(*(None if x is None else tf.constant(x) for x in (one, other)))


def image_of(batch, height, width, channels=1, levels=8, seed=1):
    """Images of noise, int32 [batch, height, width, channels]."""
    draws = np.random.default_rng(seed).integers(levels, size=[batch, height, width, channels])
    return tf.constant(draws.astype(np.int32))


def every_image(height, width, channels, levels):
    """Return all images, int32 [levels^(height width channels), height, width, channels]."""
    numbers = itertools.product(range(levels), repeat=height * width * channels)
    return np.array(list(numbers), np.int32).reshape([-1, height, width, channels])


def total_probability(log_prob, images, at_once=16384):
    """The sum of exp(log_prob(images)), log_prob giving [batch] or one number a pixel."""
    total = 0.0
    for i in range(0, len(images), at_once):
        part = images[i : i + at_once]
        nats = np.reshape(log_prob(tf.constant(part)), [len(part), -1]).astype(np.float64)
        total += np.exp(nats.sum(1)).sum()
    return total


def recorded(output, record):
    """Makes an output write down, [batch], the log-probability of everything it draws."""
    draw = output.sample

    def sample(hidden, words, *weights):
        levels = draw(hidden, words, *weights)
        record.append(output.log_prob(hidden, levels))
        return levels

    output.sample = sample
