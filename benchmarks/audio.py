"""Cached sampling of a WaveNet: our samplers, a plain `tf.while_loop`, C++ and wavenet_vocoder.

Networks: "30x64" has 30 layers, 64 residual, 64 gate, 128 skip channels, width 2 and no condition;
"24x128" is that of wavenet_vocoder's presets, 24 layers in 4 stacks, 128/128/128, width 3, 80 mel
bands; both have ten logistics. "vocoder" is that of `wavenet-vocoder-16k`, four samples per step of
its layers. Weights are random: the work does not depend on them.
"""

import dataclasses
import functools
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks import cpp_bound, torch_peers
from benchmarks.report import Benchmark, Measure, Row
from benchmarks.while_loop import PlainLoop
from onepass.model import Autoregressive
from onepass.networks.conditions import only_timed
from onepass.networks.symbols import NO_STOP, Prompt
from onepass.samplers import SAMPLERS
from onepass.samplers.native import Native, on_machine
from wavenet.config import PRESETS, MelConvention, WaveNetConfig
from wavenet.network import Network, WaveNet
from wavenet.samplers.symbols import SoundSymbols
from wavenet.vocoder import VocoderWaveNet

NETWORKS = {
    "30x64": WaveNetConfig(layers=30, stacks=3, filter_width=2, residual_channels=64,
                           gate_channels=64, skip_channels=128, components=10),
    "24x128": WaveNetConfig(layers=24, stacks=4, filter_width=3, residual_channels=128,
                            gate_channels=128, skip_channels=128, components=10,
                            feature_channels=80, condition_channels=80,
                            upsample_factors=(16, 16)),
    "vocoder": dataclasses.replace(PRESETS["wavenet-vocoder-16k"].config.network,
                                   feature_channels=80),
}  # fmt: skip
QUICK = {
    "4x64": WaveNetConfig(layers=4, stacks=2, filter_width=2, residual_channels=64,
                          gate_channels=64, skip_channels=64, components=10),
    "6x64": WaveNetConfig(layers=6, stacks=2, filter_width=3, residual_channels=64,
                          gate_channels=64, skip_channels=64, components=10, feature_channels=8,
                          condition_channels=8, upsample_factors=(4, 4)),
}  # fmt: skip
BATCHES = (1, 8)
MACHINE, PEER, BOUND = "step machine", "wavenet_vocoder", "C++, one core"
AGAINST = {
    MACHINE: ("naive", "tf.while_loop, XLA", BOUND, PEER),
    f"{MACHINE}, one core": (BOUND,),
    "XLA": ("naive", "tf.while_loop, XLA", PEER),
    "derived step": ("naive", "tf.while_loop, XLA", BOUND, PEER),
    "derived step, XLA": ("naive", "XLA", "tf.while_loop, XLA"),
    "tf.while_loop, XLA": ("tf.while_loop",),
}
Call = Callable[..., Any]


def benchmark(quick: bool = False) -> Benchmark:
    """Return the benchmark of samplers; `quick` has tiny networks and short sounds."""
    found = Benchmark("audio")
    for size, config in (QUICK if quick else NETWORKS).items():
        network = _network(config)
        for batch in BATCHES:
            samples = 64 if quick else 2048 // (1 if batch == 1 else 2)
            _add(found, size, network, batch, samples)
            if config.feature_channels and not config.conditioner_units:
                _add_peer(found, size, config, batch, 16 if quick else 128)
    return found


def _add(found: Benchmark, size: str, network: Network, batch: int, samples: int) -> None:
    """Add the rows of our samplers of a network, of the plain loop and of the C++."""
    noise = network.likelihood.noise(0, list(range(batch)), 0, samples)
    condition = _condition(network, batch, samples)
    machine: Any = on_machine(Native, SoundSymbols(network), network.likelihood)
    draw = functools.partial(machine, noise, only_timed(condition), 1.0)
    calls: dict[str, Call] = {
        MACHINE: draw,
        f"{MACHINE}, one core": functools.partial(_on_one_core, draw),
    }
    calls["XLA"] = functools.partial(cached_loop(SoundSymbols(network)), noise, condition)
    if not network.config.conditioner_units:  # no step is derived from a vocoder's graph
        derived = _derived_model(network)
        calls["derived step"] = functools.partial(derived.sample, batch, samples, 0, condition)
        loop = cached_loop(derived.symbol_network, network.likelihood)
        calls["derived step, XLA"] = functools.partial(loop, noise, condition)
        for name, is_compiled in (("tf.while_loop", False), ("tf.while_loop, XLA", True)):
            plain = PlainLoop(network, jit_compile=is_compiled)
            calls[name] = functools.partial(plain.sample, noise, condition)
    for name, call in calls.items():
        row = Row(name, size, batch, "samples/s", AGAINST.get(name, ()))
        found.add(row, functools.partial(_speed, call, batch * samples))
    found.add(Row("naive", size, batch, "samples/s"), _naive_speed(network, batch))

    def bound() -> None:
        cpp_bound.find_compiler()
        measure = functools.partial(cpp_bound.samples_per_second, network.config, batch, samples)
        found.add(Row(BOUND, size, batch, "samples/s"), measure)

    found.peer(BOUND, bound)


def _derived_model(network: Any) -> Autoregressive:
    """Return a WaveNet as a network of one's own, whose step the library derives from its graph."""
    specs = SoundSymbols(network).conditions
    return Autoregressive(
        network.of_past,
        network.likelihood,
        codec=network.codec,
        conditions=next(iter(specs.values()), None),
        inputs=tf.TensorSpec([None, None]),
    )


def cached_loop(symbols: Any, distribution: Any = None) -> Call:
    """Return the cached sampler compiled by XLA, as a function of noise and condition."""
    likelihood = distribution or symbols.network.likelihood

    def sample(noise: tf.Tensor, condition: tf.Tensor | None) -> tf.Tensor:
        return SAMPLERS["cached"](symbols, likelihood, noise, only_timed(condition))

    return tf.function(sample, jit_compile=True, autograph=False)


def _add_peer(found: Benchmark, size: str, config: WaveNetConfig, batch: int, samples: int) -> None:
    def add() -> None:
        measure: Measure = torch_peers.wavenet_vocoder(config, batch, samples)
        found.add(Row(PEER, size, batch, "samples/s"), measure)

    found.peer(PEER, add)


def _network(config: WaveNetConfig) -> Network:
    """Return a network with random weights; a vocoder's mel is that of 16 kHz."""
    if not config.conditioner_units:
        return WaveNet(config)
    hop, window = config.hop_samples, 1024
    mel = MelConvention(16_000, hop, window, window, config.feature_channels)
    return VocoderWaveNet(config, mel)


def _condition(network: Network, batch: int, samples: int):
    if not network.config.gate_inputs:
        return None
    hop = network.config.hop_samples
    frames = tf.zeros([batch, -(-samples // hop), network.config.feature_channels])
    return network.condition(frames, None, samples)


def _on_one_core(call: Call) -> Any:
    """Return what a call returns that finds one core."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        return call()
    finally:
        os.sched_setaffinity(0, allowed)


def _speed(call: Call, samples: int) -> float:
    start = time.perf_counter()
    np.asarray(call())
    return samples / (time.perf_counter() - start)


def _naive_speed(network: Network, batch: int, samples: int = 2) -> Measure:
    """Return a measure of the samples per second when each is a pass over the receptive field."""
    known = -(-(network.config.receptive_field + 1) // network.config.block_samples)
    known *= network.config.block_samples
    total, symbols = known + samples, SoundSymbols(network)
    levels = tf.fill([batch, total], network.config.levels // 2)
    prompt = Prompt(levels, tf.fill([batch], known), tf.constant(NO_STOP))
    noise = network.likelihood.noise(0, list(range(batch)), 0, total)
    condition = only_timed(_condition(network, batch, total))

    @tf.function(autograph=False)
    def call() -> tf.Tensor:
        return SAMPLERS["naive"](symbols, network.likelihood, noise, condition, 1.0, prompt)

    return functools.partial(_speed, call, batch * samples)
