"""TensorFlow Probability's PixelCNN, the outside peer: a PixelCNN++ (Salimans et al. 2017).

Of like size: one hierarchy of the full resolution, so that weights and work a pixel agree at once
with the preset's, 5 % fewer weights and 6 % less work, as 56 channels suit a processor better than
58. No dropout and no weight normalisation, which would only make it slower. Its sampler is naive:
a pass over the whole image for every pixel, and one before the first.
"""

import importlib
import math

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


def make(size: int):
    """The distribution of class-conditional colour images of a size."""
    return importlib.import_module(MODULE).PixelCNN(
        image_shape=(size, size, 3),
        conditional_shape=(CLASSES,),
        dropout_p=0.0,
        use_weight_norm=False,
        use_data_init=False,
        **LIKE_SIZE,
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


def training_step(distribution, batch: dict, xla: bool) -> Call:
    """One step of Keras's Adam down the mean log-probability of a batch; the loss, float.

    batch: "levels" int32 [batch, size, size, 3] and "label" int32 [batch].
    """
    optimizer = importlib.import_module("tf_keras").optimizers.Adam(2e-3)
    weights = distribution.network.trainable_variables
    optimizer.build(weights)

    @tf.function(jit_compile=xla, autograph=False)
    def step(values, condition):
        with tf.GradientTape() as tape:
            log_prob = distribution.log_prob(values, conditional_input=condition, training=True)
            loss = -tf.reduce_mean(log_prob)
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    values = tf.cast(batch["levels"], tf.float32)
    condition = tf.one_hot(batch["label"], CLASSES)
    return lambda: float(step(values, condition))


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
