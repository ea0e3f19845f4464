"""Training steps: a WaveNet's and a PixelCNN's products next to the machine's matrix peak.

The WaveNet has 20 layers of 64 channels, width 3, and steps of 4 clips of 7,680 samples. The
PixelCNN is `pixelcnn-cpu-32`, next to tfp.distributions.PixelCNN of like size, 16 images a step.
"""

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks import tfp_pixelcnn
from benchmarks.image_samplers import CLASSES, PIXELCNN, configuration
from benchmarks.matrix_peak import PEAK, peak_gflops
from benchmarks.report import Benchmark, Row
from onepass.replicator.training.config import LoopConfig, OptimizerConfig
from onepass.replicator.training.state import TrainState, compile_step
from pixelcnn.density import ImageDensity, ImageLoss
from wavenet.config import WaveNetConfig
from wavenet.network import WaveNet

WAVENET = WaveNetConfig(
    layers=20, stacks=2, filter_width=3, residual_channels=64, gate_channels=64, skip_channels=128
)
CLIPS, CLIP_SAMPLES = 4, 7_680
BATCH, SIDE = 16, 32
PEER = "tfp PixelCNN"
Step = Callable[[], float]


def benchmark(quick: bool = False) -> Benchmark:
    """Return the benchmark of training steps; `quick` has few short clips and small images."""
    found = Benchmark("training")
    clips, samples = (1, 512) if quick else (CLIPS, CLIP_SAMPLES)
    size = f"{samples} samples"
    sound_step, gigaflop = wavenet_step(WAVENET, clips, samples)
    row = Row("WaveNet step", size, clips, "GFLOP/s", (PEAK,))
    found.add(row, lambda: gigaflop / _seconds(sound_step))
    found.add(Row(PEAK, size, clips, "GFLOP/s"), peak_gflops)
    batch, side = (2, 8) if quick else (BATCH, SIDE)
    size = f"{side}x{side}"
    for dtype, dropout in (("float32", True), ("float32", False), ("bfloat16", True)):
        step = pixelcnn_step(dtype, batch, side, dropout)
        name = f"PixelCNN, {dtype}{'' if dropout else ', no dropout'}"
        row = Row(name, size, batch, "images/s", (PEER,))
        found.add(row, functools.partial(_rate, step, batch))

    def peer() -> None:
        distribution = tfp_pixelcnn.make(side)
        step: Any = tfp_pixelcnn.training_step(distribution, random_images(batch, side), xla=False)
        found.add(Row(PEER, size, batch, "images/s"), functools.partial(_rate, step, batch))

    found.peer(PEER, peer)
    return found


def wavenet_step(config: WaveNetConfig, clips: int, samples: int) -> tuple[Step, float]:
    """Return a training step of a WaveNet and its GFLOP: three passes of products.

    Args:
      config: without condition.
      clips: per step.
      samples: per clip.
    """
    network = WaveNet(config)

    def loss(batch):
        parameters = network(network.inputs(batch["levels"]))
        return -tf.reduce_mean(network.likelihood.log_prob(parameters, batch["levels"])), {}

    state = TrainState(network, OptimizerConfig(), 1000)
    step = compile_step(state, loss, LoopConfig().jit_compile)
    levels = np.random.default_rng(0).integers(0, config.levels, [clips, samples], np.int32)
    batch = {"levels": tf.constant(levels)}
    kernels = [w for w in network.trainable_variables if len(w.shape) > 1]
    products = 2 * sum(int(np.prod(w.shape)) for w in kernels)
    return lambda: float(step(batch)["loss"]), 3 * products * clips * samples / 1e9


def pixelcnn_step(compute_dtype: str, batch: int, side: int, dropout: bool = True) -> Step:
    """Return the step of `onepass train pixelcnn-cpu-32`, without reading data."""
    config = dataclasses.replace(configuration(PIXELCNN, side), compute_dtype=compute_dtype)
    if not dropout:
        network = dataclasses.replace(config.network, dropout=0.0)
        config = dataclasses.replace(config, network=network)
    density = ImageDensity(config)
    state = TrainState(density, config.optimizer, config.loop.num_steps)
    step = compile_step(state, ImageLoss(density), config.loop.jit_compile)
    images = random_images(batch, side)
    return lambda: float(step(images)["loss"])


def random_images(batch: int, side: int) -> dict[str, tf.Tensor]:
    """Return noise for images, classes, and seeds for dropout."""
    draws = np.random.default_rng(0)
    levels = draws.integers(256, size=[batch, side, side, 3], dtype=np.int32)
    return {
        "levels": tf.constant(levels),
        "label": tf.constant(draws.integers(CLASSES, size=batch, dtype=np.int32)),
        "seed": tf.constant(draws.integers(2**31, size=[batch, 2], dtype=np.int32)),
    }


def _seconds(step: Step) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def _rate(step: Step, batch: int) -> float:
    return batch / _seconds(step)
