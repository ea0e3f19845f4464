"""Compressed recordings come back exactly from whatever nearly equal network, or not at all."""

import functools
import math

import hostile_files
import numpy as np
import pytest
from hostile_files import refused
from networks import WINDOWS, network_of

from onepass.compression import container
from onepass.compression.conditionals import Coding, encode
from onepass.compression.container import read
from onepass.networks.conditions import NOTHING
from onepass.trained import Trained
from wavenet.config import DataConfig
from wavenet.density import Density
from wavenet.front import Request, SoundFront
from wavenet.model import SoundSampler
from wavenet.samplers.generation import generate

SPEAKERS = {"softmax, speakers": "two"}


@functools.cache
def model_of(kind, seed=0):
    network = network_of(kind, seed)
    speakers = ("one", "two", "three")[: network.config.speakers]
    front = SoundFront(DataConfig(), 1, 0.0, speakers)
    return Trained(SoundSampler(network, None), front, {"kind": "wavenet"})


def recordings_for(model, lengths=(90, 40)):
    """Wandering waveforms with digital silence in them, levels [samples] each."""
    draws, top = np.random.default_rng(0), model.network.config.levels
    waves = [0.2 * np.sin(np.cumsum(0.3 * draws.normal(size=length))) for length in lengths]
    for wave in waves:
        wave[10:20] = 0.0
    dtype = np.int16 if top == 65536 else np.uint8
    return [(top // 2 * (dtype is np.uint8) + wave * top / 2).astype(dtype) for wave in waves]


@functools.cache
def drawn():
    """Levels [1, samples] that the model of a mixture draws."""
    return generate(model_of("mixture").network, Request(2500), "cached")


@pytest.mark.parametrize("kind", ["mixture, predicting, amplified", "softmax, speakers", WINDOWS])
def test_recordings_come_back_exactly_although_outputs_are_off(kind):
    model, draws = model_of(kind), np.random.default_rng(1)
    recordings = recordings_for(model)
    data = model.compress(recordings, speaker=SPEAKERS.get(kind), verify=False)

    def moved(outputs):
        return outputs * (1.0 + 1e-5 * draws.choice([-1.0, 0.0, 1.0], outputs.shape))

    for found, expected in zip(
        container.decompress(model.compressed, data, moved=moved), recordings, strict=True
    ):
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == expected.dtype


def test_predictions_that_follow_the_sound_give_every_sample_back():
    model, click = model_of(WINDOWS), np.where(np.arange(40) == 10, 9999, 0)
    clipped = np.clip(60000 * np.sin(0.2 * np.arange(40)), -32768, 32767)
    alternating, one = np.tile([32767, -32768], 15), [-5]
    waves = [np.zeros(30), np.full(30, -32768), click, clipped, alternating, one]
    recordings = [np.asarray(wave).astype(np.int16) for wave in waves]
    for found, expected in zip(
        model.decompress(model.compress(recordings, verify=False)), recordings, strict=True
    ):
        np.testing.assert_array_equal(found, expected)


def test_a_stream_takes_the_bits_of_the_model():
    model, levels = model_of("mixture"), drawn()
    bits = -Density(model.network).log_prob(levels[0]).astype(np.float64).sum() / math.log(2)
    coding = Coding(narrowest=8e-5, tolerance=1e-5)
    stream = encode(model.compressed.conditionals, levels, NOTHING, coding)
    assert 0.999 < 8 * len(stream) / bits < 1.005


def test_a_network_that_needs_frames_is_refused():
    for kind in ("gaussian, frames", "mixture, context"):
        line = refused(model_of(kind).compress, [np.zeros(9, np.int16)])
        assert "frames are made of the sound itself" in line


def test_what_is_no_recording_is_refused():
    model = model_of("softmax, speakers")
    assert "unsigned levels below 256, got int16" in refused(model.compress, [np.zeros(3, "i2")])
    assert "got uint16 [3]" in refused(model.compress, [np.full(3, 256, np.uint16)])
    assert "There must be a recording" in refused(model.compress, [np.zeros(0, np.uint8)])
    assert "no speaker 'four'" in refused(model.compress, [np.zeros(3, "u1")], speaker="four")


@pytest.mark.parametrize("kind", ["mixture, predicting, amplified", "softmax, speakers"])
def test_a_file_with_wrong_fields_is_refused(kind):
    model = model_of(kind)
    recordings = recordings_for(model, (9, 4))
    data = model.compress(recordings, speaker=SPEAKERS.get(kind), verify=False)
    hostile_files.check(
        read(data), model.decompress, lambda found: all(map(np.array_equal, found, recordings))
    )
