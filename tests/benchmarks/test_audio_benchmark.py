"""The loops that the samplers of sound are compared with draw the same sound."""

import dataclasses

import numpy as np
import pytest

from benchmarks import audio, students, training
from benchmarks.while_loop import PlainLoop
from distill.config import StudentConfig
from wavenet.config import WaveNetConfig
from wavenet.network import WaveNet
from wavenet.samplers.symbols import SoundSymbols

SAMPLES = 40


@pytest.fixture(scope="module", params=sorted(audio.QUICK))
def drawn(request):
    """A network in float64, noise, condition, and the levels of the library's sampler."""
    small = dict.fromkeys(("residual_channels", "gate_channels", "skip_channels"), 4)
    config = dataclasses.replace(audio.QUICK[request.param], compute_dtype="float64", **small)
    network = WaveNet(config, 1)
    noise = network.likelihood.noise(3, [0, 1], 0, SAMPLES)
    condition = None
    if config.feature_channels:
        frames = np.random.default_rng(0).normal(size=(2, 3, config.feature_channels))
        condition = network.condition(frames, None, SAMPLES)
    levels = audio.cached_loop(SoundSymbols(network))(noise, condition)
    return network, noise, condition, levels.numpy()


@pytest.mark.parametrize("jit_compile", [False, True])
def test_the_plain_loop_draws_the_levels_of_the_sampler(drawn, jit_compile):
    network, noise, condition, levels = drawn
    assert np.array_equal(PlainLoop(network, jit_compile).sample(noise, condition), levels)


def test_every_sampler_is_held_against_rows_of_its_size_and_batch():
    rows = audio.benchmark(quick=True).rows
    names = {row.what for row in rows} | {audio.PEER}
    assert {name for row in rows for name in row.against} <= names
    keys = [(row.what, row.size, row.batch) for row in rows]
    assert len(keys) == len(set(keys))
    assert {"naive", "derived step", "tf.while_loop, XLA"} <= names


def test_operations_of_a_student_are_those_counted_by_hand():
    config = StudentConfig(
        flows=(1, 2), filter_width=2, residual_channels=3, gate_channels=5, front_width=4,
        feature_channels=9, condition_channels=7, upsample_factors=(2,),
    )  # fmt: skip
    gate = 10 * (3 + 3 + 7)  # multiplications: ten outputs of two taps and the condition
    residual, front, head = 5 * 3, 4 * 3, 3 * 3 + 3 * 2
    assert students.flops_per_sample(config) == 2 * (3 * (gate + residual) + 2 * (front + head))


def test_operations_of_a_training_step_are_three_passes_of_products():
    config = WaveNetConfig(
        layers=2, stacks=1, filter_width=2, residual_channels=4, gate_channels=4, skip_channels=8
    )
    step, gigaflop = training.wavenet_step(config, 2, 16)
    outputs = config.make_likelihood().num_parameters
    front, head = config.front_width * 4, 8 * 8 + 8 * outputs
    layers = 2 * (2 * 4 * 8 + 4 * 8) + 4 * 4  # the last layer has no residual
    assert gigaflop == pytest.approx(3 * 2 * (front + layers + head) * 2 * 16 / 1e9)
    assert step() > step() > 0
