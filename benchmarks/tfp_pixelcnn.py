"""TensorFlow Probability's PixelCNN, the outside peer: a PixelCNN++ (Salimans et al. 2017).

Of like size: one hierarchy of the full resolution, so that weights and work a pixel agree at once
with the preset's, 5 % fewer weights and 6 % less work, as 56 channels suit a processor better than
58. No dropout and no weight normalisation, which would only make it slower. Its sampler is naive:
a pass over the whole image for every pixel, and one before the first.
"""

import importlib
import math
from collections.abc import Iterable

import numpy as np
import tensorflow as tf

from benchmarks.image_samplers import (
    CLASSES,
    LABEL,
    Call,
    Timed,
    by_engine,
    passes_timed,
    stopped,
)

LIKE_SIZE = dict(num_resnet=1, num_hierarchies=1, num_filters=56, num_logistic_mix=5)
MODULE = "tensorflow_probability.python.distributions.pixel_cnn"


def make(size: int, classes: int = CLASSES, **settings):
    """The distribution of class-conditional colour images of a size; `settings` change its own."""
    plain = dict(dropout_p=0.0, use_weight_norm=False, use_data_init=False)
    return importlib.import_module(MODULE).PixelCNN(
        image_shape=(size, size, 3),
        conditional_shape=(classes,),
        **{**plain, **LIKE_SIZE, **settings},
    )


def passes_timed_of(size: int) -> tuple[int, int]:
    """Passes that are run for an image of size x size pixels, and those that it takes."""
    return passes_timed(size) + 1, size**2 + 1


def sampler(size: int) -> Timed:
    """`sample` with its loop stopped as the naive sampler's is, by the faster engine."""
    distribution, (passes, whole) = make(size), passes_timed_of(size)
    return Timed(
        by_engine(lambda xla: sampled_part(distribution, passes - 1, xla), size), passes / whole
    )


def sampled_part(distribution, loops: int, xla: bool) -> Call:
    """Draw the first `loops` pixels after one pass over noise: float32 [1, size, size, 3]."""
    # Its own alias of the package has a `while_loop` of its own.
    tensorflow = importlib.import_module(MODULE).tf

    @tf.function(jit_compile=xla, autograph=False)
    def program(condition):
        return distribution.sample(1, conditional_input=condition)

    def call():
        with stopped(tensorflow, loops):
            return program(tf.one_hot([LABEL], CLASSES)).numpy()

    return call


class Training:
    """Keras's Adam down the mean log-probability, and a Polyak average of the weights.

    Batches have "levels" int32 [batch, size, size, 3] and "label" int32 [batch].

    Args:
      distribution: what `make` returns, whose masks are applied here and after each update.
      learning_rate: of Adam.
      average_decay: of the Polyak average, which starts low as ours does; 0: no average.
      xla: whether XLA compiles the step.
    """

    def __init__(
        self,
        distribution,
        learning_rate: float = 2e-3,
        average_decay: float = 0.0,
        xla: bool = False,
    ) -> None:
        self.distribution, self.decay = distribution, average_decay
        self.weights = distribution.network.trainable_variables
        for weight in self.weights:
            if weight.constraint is not None:
                weight.assign(weight.constraint(weight))
        self.optimizer = importlib.import_module("tf_keras").optimizers.Adam(learning_rate)
        self.optimizer.build(self.weights)
        averaged = self.weights if average_decay else ()
        self.averages = [tf.Variable(weight, trainable=False) for weight in averaged]
        self._step = tf.function(self._update, jit_compile=xla, autograph=False)
        self._nats = tf.function(self._log_prob, autograph=False, reduce_retracing=True)

    @property
    def variables(self) -> list:
        """Everything that an update changes, the number of updates included."""
        return [*self.weights, *self.optimizer.variables, *self.averages]

    @property
    def step(self) -> int:
        """The number of updates."""
        return int(self.optimizer.iterations)

    def update(self, batch: dict) -> float:
        """Make one update, and return the loss: nats per image."""
        return float(self._step(batch["levels"], batch["label"]))

    def bits(self, batches: Iterable[dict]) -> np.ndarray:
        """Return bits per dimension of each image with averaged weights, without dropout."""
        live = [weight.numpy() for weight in self.weights]
        for weight, average in zip(self.weights, self.averages, strict=False):
            weight.assign(average)
        nats = [self._nats(batch["levels"], batch["label"], False).numpy() for batch in batches]
        for weight, value in zip(self.weights, live, strict=True):
            weight.assign(value)
        dimensions = math.prod(self.distribution.event_shape)
        return -np.concatenate(nats) / dimensions / math.log(2.0)

    def _log_prob(self, levels, labels, training: bool) -> tf.Tensor:
        (classes,) = self.distribution.conditional_shape
        return self.distribution.log_prob(
            tf.cast(levels, tf.float32),
            conditional_input=tf.one_hot(labels, classes),
            training=training,
        )

    def _update(self, levels, labels) -> tf.Tensor:
        count = tf.cast(self.optimizer.iterations, tf.float32)
        with tf.GradientTape() as tape:
            loss = -tf.reduce_mean(self._log_prob(levels, labels, True))
        gradients = tape.gradient(loss, self.weights)
        self.optimizer.apply_gradients(zip(gradients, self.weights, strict=True))
        decay = tf.minimum(self.decay, (1.0 + count) / (10.0 + count))
        for average, weight in zip(self.averages, self.weights, strict=False):
            average.assign(decay * average + (1.0 - decay) * weight)
        return loss


def training_step(distribution, batch: dict, xla: bool) -> Call:
    """One step of `Training` on a batch; the loss, float."""
    training = Training(distribution, xla=xla)
    return lambda: training.update(batch)


def weights_and_work(distribution) -> tuple[int, float]:
    """Its weights, masked ones too, and MFLOP a pixel in the products of one pass."""
    network = distribution.network
    weights = sum(int(np.prod(w.shape)) for w in network.trainable_variables)
    pixels = math.prod(distribution.event_shape[:2])
    work = sum(
        2 * math.prod(layer.output_shape[1:-1]) * math.prod(layer.kernel.shape)
        for layer in network._network.layers
        if hasattr(layer, "kernel")
    )
    return weights, work / pixels / 1e6
