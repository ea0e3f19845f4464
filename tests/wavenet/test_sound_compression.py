"""Compressed recordings come back exactly from whatever nearly equal network, or not at all."""

import math

import hostile_files
import numpy as np
import pytest
import tensorflow as tf
from networks import network_of

from compression.container import read
from replicator.runs.errors import UserError
from wavenet.compression import SoundCodec, compress, decompress
from wavenet.samplers.generation import generate
from wavenet.speech_model import Request

SPEAKERS = {"softmax, speakers": 1}


def recordings_for(network, lengths=(90, 40)):
    """Wandering waveforms with digital silence in them, int32 levels [samples] each."""
    draws = np.random.default_rng(0)
    waves = [0.2 * np.sin(np.cumsum(0.3 * draws.normal(size=length))) for length in lengths]
    for wave in waves:
        wave[10:20] = 0.0
    return [network.codec.encode(tf.constant(wave, tf.float32)).numpy() for wave in waves]


def refused(call, *arguments):
    with pytest.raises(UserError) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("kind", ["mixture, predicting, amplified", "softmax, speakers"])
def test_recordings_come_back_exactly_although_outputs_are_off(kind, monkeypatch):
    network, draws = network_of(kind), np.random.default_rng(1)
    codec, recordings = SoundCodec(network), recordings_for(network)
    data = compress(codec, recordings, SPEAKERS.get(kind), 1e-5)

    def moved(outputs):
        return outputs * (1.0 + 1e-5 * draws.choice([-1.0, 0.0, 1.0], outputs.shape))

    monkeypatch.setattr(SoundCodec, "outputs", staticmethod(moved))
    for found, expected in zip(decompress(codec, data), recordings, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_stream_takes_the_bits_of_the_model():
    network = network_of("mixture")
    codec, levels = SoundCodec(network), generate(network, Request(6000), "xla")[0]
    bits = -codec._density.log_prob(levels).astype(np.float64).sum() / math.log(2)
    assert 0.999 < 8 * len(codec.encode(levels, None, 1e-5)) / bits < 1.005


def test_a_network_that_needs_frames_is_refused():
    line = refused(SoundCodec, network_of("gaussian, frames"))
    assert "frames are made of the sound itself" in line
    refused(SoundCodec, network_of("mixture, context"))


def test_another_network_refuses_the_file():
    network = network_of("mixture, predicting, amplified")
    data = compress(SoundCodec(network), recordings_for(network, (20,)), None, 1e-5)
    other = SoundCodec(network_of("mixture, predicting, amplified", seed=1))
    assert "requires the model" in refused(decompress, other, data)


@pytest.mark.parametrize("kind", ["mixture, predicting, amplified", "softmax, speakers"])
def test_a_file_with_wrong_fields_is_refused(kind):
    codec = SoundCodec(network_of(kind))
    recordings = recordings_for(codec.network, (9, 4))
    data = compress(codec, recordings, SPEAKERS.get(kind), 1e-5, verify=False)
    hostile_files.check(
        read(data),
        lambda changed: decompress(codec, changed),
        lambda found: all(map(np.array_equal, found, recordings)),
    )


def test_a_file_that_cannot_be_decoded_is_not_returned(monkeypatch):
    codec, decode = SoundCodec(network_of("mixture")), SoundCodec.decode
    recordings = [generate(codec.network, Request(200), "xla")[0]]

    def moved(codec, stream, samples, speaker, narrowest, moved=None):
        return decode(codec, stream, samples, speaker, narrowest, lambda outputs: 1.1 * outputs)

    monkeypatch.setattr(SoundCodec, "decode", moved)
    assert "could not be decoded again" in refused(compress, codec, recordings, None, 1e-5)
    assert compress(codec, recordings, None, 1e-5, False)
