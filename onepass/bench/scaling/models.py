"""What `onepass bench scaling` trains: models by name, and a dense network on noise."""

import dataclasses
import importlib
import itertools

import numpy as np
import tensorflow as tf

import pixelcnn.portable
import wavenet.portable
from pixelcnn.presets import PRESETS as IMAGE_PRESETS
from replicator.planning.trainable import Trainable
from replicator.runs.errors import UserError
from wavenet.presets import PRESETS as SOUND_PRESETS

DENSE_INPUTS, DENSE_UNITS, DENSE_CLASSES, DENSE_ROWS = 64, 256, 10, 64
DENSE_RATE = 1e-3


def trainable(name: str, clip_samples: int | None = None) -> Trainable:
    """The training step of a model; to be made in the scope of a replicator.

    Args:
      name: a preset of `onepass train`, or MODULE:FUNCTION of a function that gives a `Trainable`.
      clip_samples: of a WaveNet, in place of the preset's.
    """
    if name in SOUND_PRESETS:
        config = SOUND_PRESETS[name].config
        if clip_samples is not None:
            data = dataclasses.replace(config.data, clip_samples=clip_samples)
            config = dataclasses.replace(config, data=data)
        return wavenet.portable.trainable(config)
    if name in IMAGE_PRESETS:
        return pixelcnn.portable.trainable(IMAGE_PRESETS[name].config)
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"There is no model `{name}`: {error}.") from error


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
