"""What `onepass bench scaling` trains: a small WaveNet preset and a dense network, on noise."""

import dataclasses
import itertools

import numpy as np
import tensorflow as tf

from replicator.training.accumulation import Batch
from replicator.training.state import TrainState
from wavenet.network import WaveNet
from wavenet.presets import PRESETS, TrainConfig
from wavenet.training import ClipLoss, loss_function

DENSE_INPUTS, DENSE_UNITS, DENSE_CLASSES, DENSE_ROWS = 64, 256, 10, 64
DENSE_RATE = 1e-3


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A WaveNet to be trained: its state and its loss."""

    config: TrainConfig
    state: TrainState
    loss: ClipLoss


def configuration(preset: str) -> TrainConfig:
    """The preset's training, of one speaker."""
    return PRESETS[preset].config.resolved(1)


def teacher(preset: str) -> Teacher:
    """A new WaveNet with its optimiser's state; to be made in the scope of a replicator."""
    config = configuration(preset)
    network = WaveNet(config.network, config.seed)
    state = TrainState(network, config.optimizer, config.loop.num_steps)
    return Teacher(config, state, loss_function(network))


def clips(config: TrainConfig, rows: int, samples: int) -> Batch:
    """A batch of noise such as `wavenet.data.pipeline.clips` gives, without padding."""
    draws = np.random.default_rng(0)
    network = config.network
    wave = np.clip(0.1 * draws.normal(size=[rows, samples]), -1, 1).astype(np.float32)
    batch = {
        "levels": network.make_likelihood().encode(tf.constant(wave)),
        "mask": tf.ones([rows, samples]),
        "speaker": tf.zeros([rows], tf.int32),
    }
    if network.feature_channels:
        shape = [rows, samples // network.hop_samples, network.feature_channels]
        batch["frames"] = tf.constant(draws.normal(size=shape).astype(np.float32))
    return batch


class Dense(tf.Module):
    """Two hidden layers of ReLUs, and a class for each row."""

    def __init__(self):
        super().__init__(name="dense")
        draws = np.random.default_rng(0)
        sizes = (DENSE_INPUTS, DENSE_UNITS, DENSE_UNITS, DENSE_CLASSES)
        self.kernels, self.biases = [], []
        for inputs, outputs in itertools.pairwise(sizes):
            kernel = draws.normal(0.0, inputs**-0.5, size=[inputs, outputs])
            self.kernels.append(tf.Variable(kernel.astype(np.float32)))
            self.biases.append(tf.Variable(tf.zeros([outputs])))

    def loss(self, rows, labels):
        """The mean cross-entropy of rows [batch, inputs] and labels int32 [batch], in nats."""
        for kernel, bias in zip(self.kernels[:-1], self.biases[:-1], strict=True):
            rows = tf.nn.relu(tf.matmul(rows, kernel) + bias)
        logits = tf.matmul(rows, self.kernels[-1]) + self.biases[-1]
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


def labelled_rows(batches: int) -> tf.data.Dataset:
    """Endless batches of noise: float32 [batch, inputs] and int32 [batch]."""
    draws = np.random.default_rng(0)
    rows = draws.normal(size=[batches, DENSE_ROWS, DENSE_INPUTS]).astype(np.float32)
    labels = draws.integers(DENSE_CLASSES, size=[batches, DENSE_ROWS], dtype=np.int32)
    return tf.data.Dataset.from_tensor_slices((rows, labels)).repeat()
