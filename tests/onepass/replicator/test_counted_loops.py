"""Exported samplers have loops of known length, for which a device need not ask its host."""

import dataclasses
import re

import jax
import numpy as np
import pytest
import tensorflow as tf
from image_networks import QuickInitial
from image_runs import config_of
from networks import network_of
from vocoders import vocoder_of

import onepass
from onepass.networks.conditions import only_timed
from onepass.replicator.portable import run as portable_run
from onepass.replicator.portable.export import export_function, named_weights
from onepass.replicator.portable.manifest import read_manifest
from onepass.samplers import SAMPLERS
from pixelcnn.density import ImageDensity, sample
from pixelcnn.model import sample_pixelcnn, sampler_of
from wavenet.samplers.symbols import SoundSymbols

SAMPLES = 48


def wavenet(network):
    """The cached sampler of a sound."""
    symbols, channels = SoundSymbols(network), network.likelihood.noise_channels

    def fn(given):
        condition = only_timed(given.get("condition"))
        drawn = SAMPLERS["cached"](symbols, network.likelihood, given["noise"], condition)
        return {"levels": tf.ensure_shape(drawn, [1, SAMPLES])}

    inputs = {"noise": tf.TensorSpec([1, SAMPLES, channels])}
    if network.config.gate_inputs:
        inputs["condition"] = tf.TensorSpec([1, SAMPLES, network.config.gate_inputs])
    return fn, inputs, network


def derived():
    """The sampler whose step the library derives."""
    network = network_of("mixture")
    model = onepass.Autoregressive(
        network.of_past, network.likelihood, inputs=tf.TensorSpec([None, None])
    )

    def fn(given):
        drawn = SAMPLERS["cached"](model.symbol_network, network.likelihood, given["noise"])
        return {"x": tf.ensure_shape(drawn, [1, SAMPLES])}

    spec = tf.TensorSpec([1, SAMPLES, network.likelihood.noise_channels])
    return fn, {"noise": spec}, network


def image(sampler):
    """A sampler of a PixelCNN."""
    config = config_of("pixelcnn")
    conditioning = dataclasses.replace(config.conditioning, classes=3)
    config = dataclasses.replace(config, conditioning=conditioning)
    density = ImageDensity(config, QuickInitial(0))

    def fn(given):
        fixed = (density.conditioner, density.pixelcnn, 8, sampler, given, given["seed"], [0])
        return {"picture": sample_pixelcnn(*fixed, None, 1.0)}

    inputs = {"seed": tf.TensorSpec([2], tf.uint32), "label": tf.TensorSpec([1], tf.int32)}
    return fn, inputs, density


PROGRAMS = {
    "cached": (lambda: wavenet(network_of("mixture")), [SAMPLES]),
    "vocoder": (lambda: wavenet(vocoder_of("bunches of 4")), [SAMPLES // 4]),
    "derived": (derived, [SAMPLES]),
    "image": (lambda: image(sample), [8, 8]),
    "image, naive": (lambda: image(sampler_of("naive")), [64]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_length_of_every_loop_is_known(name, tmp_path):
    make, lengths = PROGRAMS[name]
    fn, inputs, module = make()
    export_function(fn, inputs, tmp_path, "f", variables=named_weights(module))
    described = read_manifest(tmp_path)["functions"]["f"]
    specs = [
        jax.ShapeDtypeStruct(tuple(spec["shape"]), np.dtype(spec["dtype"]))
        for spec in described["inputs"] + described["captured"]
    ]
    call = portable_run.load_exported(tmp_path, described).call
    text = jax.jit(lambda *arguments: call(*arguments)).lower(*specs).compile().as_text()
    loops = [line for line in text.splitlines() if re.search(r"\) while\(", line)]
    known = [re.search(r'"known_trip_count":\{"n":"(\d+)"\}', line) for line in loops]
    found = [int(each.group(1)) if each else 0 for each in known]
    assert 0 not in found and set(lengths) <= set(found)  # others are of gathers
