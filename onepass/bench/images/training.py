"""A training step of the PixelCNN and of TensorFlow Probability's, on the same batch."""

import dataclasses

import numpy as np
import tensorflow as tf

from onepass.bench.images import tfp_pixelcnn
from onepass.bench.images.programs import CLASSES, PIXELCNN, Timed, by_engine, configuration
from pixelcnn.density import ImageDensity
from replicator.training.state import TrainState
from replicator.training.step import compile_step

SIZE, BATCH = 32, 16
DTYPES = ("float32", "bfloat16")


def own_step(compute_dtype: str) -> Timed:
    """The step that `onepass train` makes, without reading data."""
    config = dataclasses.replace(configuration(PIXELCNN, SIZE), compute_dtype=compute_dtype)
    density = ImageDensity(config)
    state = TrainState(density, config.optimizer, config.loop.num_steps)
    xla = config.loop.jit_compile
    step, batch = compile_step(state, density.loss, xla), random_batch()
    return Timed({"XLA" if xla else "graph": lambda: float(step(batch)["loss"])})


def peer_step() -> Timed:
    """The other's step, by the faster engine."""
    distribution, batch = tfp_pixelcnn.make(SIZE), random_batch()
    return Timed(by_engine(lambda xla: tfp_pixelcnn.training_step(distribution, batch, xla), SIZE))


def random_batch() -> dict[str, tf.Tensor]:
    """Noise for images, classes, and seeds for dropout."""
    draws = np.random.default_rng(0)
    levels = draws.integers(256, size=[BATCH, SIZE, SIZE, 3], dtype=np.int32)
    return {
        "levels": tf.constant(levels),
        "label": tf.constant(draws.integers(CLASSES, size=BATCH, dtype=np.int32)),
        "seed": tf.constant(draws.integers(2**31, size=[BATCH, 2], dtype=np.int32)),
    }
