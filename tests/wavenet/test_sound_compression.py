"""Compressed recordings come back exactly from whatever nearly equal network, or not at all."""

import dataclasses
import functools

import hostile_files
import numpy as np
import pytest
import tensorflow as tf
from hostile_files import refused
from networks import WINDOWS, levels_of, network_of

from onepass.compression import container
from onepass.compression.arrays import Rows, SymbolConditionals
from onepass.compression.container import read
from onepass.machine import machine
from onepass.samplers.native import NativeOutputs
from onepass.trained import Trained
from wavenet import compression
from wavenet.config import DataConfig
from wavenet.front import SoundFront
from wavenet.model import SoundSampler

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


@pytest.fixture
def short_segments(monkeypatch):
    """Cut recordings into segments of about 40 samples, three of them in a stream."""
    short = {"SEGMENT": 40, "SHIFT": 8, "QUIET": 4, "MOST_ROWS": 3}
    for name, value in short.items():
        monkeypatch.setattr(compression, name, value)


@pytest.mark.parametrize("kind", ["softmax, speakers", WINDOWS])
def test_recordings_of_many_segments_come_back_exactly(kind, short_segments):
    model = model_of(kind)
    recordings = recordings_for(model, (200, 30, 90, 41))
    recordings.insert(1, recordings[0][:1])
    data = model.compress(recordings, speaker=SPEAKERS.get(kind), verify=False)
    segments = read(data).description["segments"]
    assert len(segments) == 5 + 1 + 1 + 2 + 1 and len(read(data).streams) == 4
    assert len({length for length, _ in segments}) > 4  # rows end at different times
    for found, expected in zip(model.decompress(data), recordings, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_recording_is_cut_where_it_is_quietest_near_even_places():
    wave = np.full(3 * compression.SEGMENT, 900)
    wave[7000:7256] = wave[17900:18156] = 3
    wave[4000:4400] = 0  # too far away
    assert compression.find_cuts(wave).tolist() == [7128, 18028]
    assert not len(compression.find_cuts(wave[: compression.SEGMENT]))


def parameters_of_steps(network, levels, before, lengths=()):
    """Parameters [rows, samples, ...] of the decoder's steps, where a row has not ended."""
    conditionals = SymbolConditionals(compression.autoregressive(network))
    seen = []

    def read(parameters):
        seen.append(parameters)
        return levels[: len(parameters), len(seen) - 1]

    conditionals._decode_by_steps(levels.shape, Rows(lengths=lengths, before=before), read)
    assert isinstance(conditionals._machine, NativeOutputs)
    return seen


@pytest.mark.parametrize("kind", ["mixture", WINDOWS])
def test_parameters_of_steps_are_those_of_a_pass_whatever_the_batch_and_the_threads(
    kind, monkeypatch
):
    network = network_of(kind)
    whole, lengths = levels_of(network, 3, 80), (50, 50, 21)
    before, levels = whole[:, :30], whole[:, 30:]
    steps = parameters_of_steps(network, levels, before, lengths)
    expected = network(network.inputs(tf.constant(whole)), None).numpy()[:, 30:, np.newaxis]
    for time, rows in enumerate(steps):
        assert len(rows) == (3 if time < 21 else 2)
        np.testing.assert_allclose(rows, expected[: len(rows), time], rtol=1e-4, atol=1e-5)
    alone = parameters_of_steps(network, levels[1:2], before[1:2])
    for one, rows in zip(alone, steps, strict=True):
        np.testing.assert_array_equal(one[0], rows[1])
    monkeypatch.setattr(machine, "_WORTH_A_THREAD", 1)
    monkeypatch.setattr(machine, "cores", lambda: 3)
    for one, other in zip(
        steps, parameters_of_steps(network, levels, before, lengths), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_a_file_of_an_older_version_is_refused_by_its_number():
    model = model_of("mixture")
    found = read(model.compress(recordings_for(model, (30,)), verify=False))
    assert found.version == 3
    older = dataclasses.replace(found, version=2).to_bytes()
    assert refused(model.decompress, older) == (
        "The compressed file has format version 2; this program reads sound of version 3."
    )


def test_an_error_in_one_stream_ends_the_others(short_segments):
    model = model_of("mixture")
    found = read(model.compress(recordings_for(model, (200,)), verify=False))
    damaged = dataclasses.replace(found, streams=(found.streams[0][:9], *found.streams[1:]))
    assert "a stream" in refused(model.decompress, damaged.to_bytes())


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


def test_a_file_with_wrong_fields_is_refused():
    model = model_of("softmax, speakers")
    recordings = recordings_for(model, (9, 4))
    data = model.compress(recordings, speaker="two", verify=False)
    hostile_files.check(
        read(data), model.decompress, lambda found: all(map(np.array_equal, found, recordings))
    )
