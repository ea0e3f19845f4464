"""Samplers of a WaveNet and their students side by side in one run, with the C++ bound.

Networks, as in the issue threads that ask for speed: (a) 30 layers, 64 residual, 64 gate, 128
skip, width 2, ten logistics, no condition; (b) 24 layers in 4 stacks, 128 residual, 128 gate, 128
skip, width 3, Gaussian, 80 mel bands (wavenet_vocoder's Gaussian preset). And (p), of the width of
Parallel WaveNet's teacher: (a) with width 3 and 80 mel bands, which the students are
held against. And (v), the vocoder of wavenet-vocoder-16k, which draws four samples a step of its
layers. Weights are random: the work does not depend on them.
"""

import dataclasses
import functools
import time

import numpy as np
import tensorflow as tf

from onepass.bench.audio import cpp_bound as bound
from onepass.bench.audio import students
from onepass.bench.audio.arguments import BenchArguments
from onepass.bench.options import check_names
from onepass.bench.report import Measures, Row, finished, measured
from wavenet.config import WaveNetConfig
from wavenet.features import MelConvention
from wavenet.network import WaveNet
from wavenet.networks import Network
from wavenet.presets import PRESETS
from wavenet.samplers import NaiveSampler
from wavenet.samplers.generation import xla_sampler
from wavenet.samplers.numba.sampler import sampler_for
from wavenet.vocoder import VocoderWaveNet

NETWORKS = {
    "a": WaveNetConfig(layers=30, stacks=3, filter_width=2, residual_channels=64, gate_channels=64,
                       skip_channels=128, components=10),
    "b": WaveNetConfig(layers=24, stacks=4, filter_width=3, residual_channels=128,
                       gate_channels=128, skip_channels=128, likelihood="gaussian",
                       feature_channels=80, condition_channels=80, upsample_factors=(16, 16)),
    "p": WaveNetConfig(layers=30, stacks=3, filter_width=3, residual_channels=64, gate_channels=64,
                       skip_channels=128, components=10, feature_channels=80,
                       condition_channels=80, upsample_factors=(16, 15)),
    "v": dataclasses.replace(PRESETS["wavenet-vocoder-16k"].config.network, feature_channels=80),
}  # fmt: skip
CHUNK = {"a": 2048, "b": 512, "p": 1024, "v": 4096}
NAIVE_SAMPLES = {"a": 4, "b": 4, "p": 2, "v": 4}
SAMPLERS = ("C++ bound", "Numba cached, 1 core", "Numba cached", "XLA cached", "naive")


def run(given: BenchArguments) -> int:
    """Measures and prints the table; the exit status of `onepass bench audio`."""
    _check(given)
    measures = chosen(given)
    print("compiling ...", flush=True)
    for _, measure in measures:
        measure()
    return finished(given, measured(measures, given.rounds), {})


def _check(given: BenchArguments) -> None:
    check_names("network", given.networks, list(NETWORKS))
    check_names("student", given.students, list(students.STUDENTS))
    given.check_numbers("seconds", least=0, above=True)
    given.check_numbers("rounds")


def chosen(given: BenchArguments) -> Measures:
    """Everything that the arguments ask for, and the teacher of the students, each once."""
    measures = []
    for name in given.networks:
        measures += measures_of(name, NETWORKS[name], given.batches)
    if given.students:
        known = {(row.what, row.size, row.batch) for row, _ in measures}
        name, samplers = students.TEACHER, ("Numba cached", "naive")
        needed = measures_of(name, NETWORKS[name], given.student_batches, samplers)
        measures += [
            (row, measure)
            for row, measure in needed
            if (row.what, row.size, row.batch) not in known
        ]
    for name in given.students:
        config = students.STUDENTS[name]
        measures += students.measures_of(name, config, given.seconds, given.student_batches)
    return measures


def measures_of(
    name: str,
    config: WaveNetConfig,
    batches: tuple[int, ...],
    samplers: tuple[str, ...] = SAMPLERS,
) -> Measures:
    """A row and a function to measure it for every sampler and batch of one network."""
    network, unit = _network(config), "samples/s"
    known = {
        "C++ bound": (bound_speed, None),
        "Numba cached, 1 core": (numba_one_core_speed, "C++ bound"),
        "Numba cached": (numba_speed, "C++ bound"),
        "XLA cached": (xla_speed, "naive"),
        "naive": (naive_speed, None),
    }
    measures: Measures = []
    for batch in batches:
        for what in samplers:
            measure, against = known[what]
            row = Row(what, name, batch, unit, against if against in samplers else None)
            measures.append((row, functools.partial(measure, name, network, batch)))
    return measures


def _network(config: WaveNetConfig) -> Network:
    """A network with random weights; a vocoder's mel is that of 16 kHz."""
    if not config.conditioner_units:
        return WaveNet(config)
    hop, window = config.hop_samples, 1024
    return VocoderWaveNet(
        config, MelConvention(16_000, hop, window, window, config.feature_channels)
    )


def bound_speed(name: str, network: Network, batch: int) -> float:
    """Samples a second of the C++ program, one core."""
    return bound.samples_per_second(name, batch)


_numba = functools.cache(sampler_for)


_xla = functools.cache(xla_sampler)


@functools.cache
def _naive(network: Network) -> NaiveSampler:
    return NaiveSampler(network, network.config.receptive_field + 1)


def numba_speed(name: str, network: Network, batch: int) -> float:
    """Samples a second of the compiled loop, on all cores."""
    return _cached_speed(_numba(network), name, network, batch)


def numba_one_core_speed(name: str, network: Network, batch: int) -> float:
    """Samples a second of the compiled loop on one core, as the bound has it."""
    return _cached_speed(_numba(network, 1), name, network, batch)


def xla_speed(name: str, network: Network, batch: int) -> float:
    """Samples a second of the XLA program."""
    return _cached_speed(_xla(network), name, network, batch)


def _cached_speed(sampler, name: str, network: Network, batch: int) -> float:
    samples = CHUNK[name]
    noise = network.likelihood.noise(0, list(range(batch)), 0, samples)
    condition = _condition(network, batch, samples)
    state = sampler.initial_state(batch)
    start = time.perf_counter()
    levels, _, _ = sampler.generate_chunk(state, condition, noise)
    np.asarray(levels)
    return batch * samples / (time.perf_counter() - start)


def naive_speed(name: str, network: Network, batch: int) -> float:
    """Samples a second when every one costs a pass over the receptive field."""
    window, samples = network.config.receptive_field + 1, NAIVE_SAMPLES[name]
    time_ = window + samples
    levels = np.full([batch, time_], network.config.levels // 2, np.int32)
    noise = network.likelihood.noise(0, list(range(batch)), 0, time_)
    condition = _condition(network, batch, time_)
    sampler = _naive(network)
    start = time.perf_counter()
    for t in range(window, time_):
        parameters = sampler.parameters(levels, condition, t)
        levels[:, t] = network.likelihood.sample(parameters, noise[:, t])
    return batch * samples / (time.perf_counter() - start)


def _condition(network: Network, batch: int, samples: int):
    if not network.config.gate_inputs:
        return None
    hop = network.config.hop_samples
    frames = tf.zeros([batch, -(-samples // hop), network.config.feature_channels])
    return network.condition(frames, None, samples)
