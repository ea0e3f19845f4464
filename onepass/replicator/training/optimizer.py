"""Adam as a pure function of its state, with gradient clipping and a Polyak average.

Kingma and Ba 2015, "Adam: A Method for Stochastic Optimization", algorithm 1:

    m <- b1 m + (1 - b1) g,     v <- b2 v + (1 - b2) g^2
    w <- w - rate * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + epsilon)
"""

import math

import tensorflow as tf

from onepass.replicator.training.config import OptimizerConfig

Tensors = list[tf.Tensor]


def learning_rate(config: OptimizerConfig, step: tf.Tensor, num_steps: int) -> tf.Tensor:
    """Return the learning rate, float32 [], of the update after `step` (int32 []) updates."""
    step = tf.cast(step, tf.float32)
    rate = config.learning_rate * tf.minimum(1.0, (step + 1.0) / max(config.warmup_steps, 1))
    if config.decay == "cosine":
        rate *= 0.5 * (1.0 + tf.cos(math.pi * tf.minimum(step / num_steps, 1.0)))
    if config.decay == "cooldown":
        rate *= tf.clip_by_value((num_steps - step) / config.cooldown_steps, 0.0, 1.0)
    if config.decay == "halve":
        rate *= 0.5 ** tf.floor(step / config.halve_every_steps)
    return rate


def clip_by_global_norm(gradients: Tensors, limit: float) -> tuple[Tensors, tf.Tensor]:
    """Return the gradients scaled down to the global norm `limit` (0: no limit), and their norm."""
    squares = [tf.cast(tf.reduce_sum(tf.square(g)), tf.float32) for g in gradients]
    norm = tf.sqrt(tf.add_n(squares))
    if not limit:
        return gradients, norm
    scale = limit / tf.maximum(norm, limit)
    return [g * tf.cast(scale, g.dtype) for g in gradients], norm


def adam(
    config: OptimizerConfig,
    rate: tf.Tensor,
    step: tf.Tensor,
    weights: Tensors,
    gradients: Tensors,
    first: Tensors,
    second: Tensors,
) -> tuple[Tensors, Tensors, Tensors]:
    """Return weights, first and second moments after the Adam update that follows `step`."""
    count = tf.cast(step + 1, tf.float32)
    first = [
        config.beta1 * m + (1 - config.beta1) * g for m, g in zip(first, gradients, strict=True)
    ]
    second = [
        config.beta2 * v + (1 - config.beta2) * tf.square(g)
        for v, g in zip(second, gradients, strict=True)
    ]
    first_bias = 1.0 - tf.pow(config.beta1, count)
    second_bias = 1.0 - tf.pow(config.beta2, count)

    # Rate and corrections are float32; weights may have a different type.
    def update_weight(w: tf.Tensor, m: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
        own_rate, of_m, of_v = (tf.cast(x, w.dtype) for x in (rate, first_bias, second_bias))
        return w - own_rate * (m / of_m) / (tf.sqrt(v / of_v) + config.epsilon)

    after = [update_weight(*each) for each in zip(weights, first, second, strict=True)]
    return after, first, second


def polyak(config: OptimizerConfig, step: tf.Tensor, average: Tensors, weights: Tensors) -> Tensors:
    """Return the moving average of the weights; its decay starts low, so it needs no warm-up."""
    count = tf.cast(step, tf.float32)
    decay = tf.minimum(config.average_decay, (1.0 + count) / (10.0 + count))

    def move_average(a: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
        return tf.cast(decay, a.dtype) * a + tf.cast(1.0 - decay, a.dtype) * w

    return [move_average(*each) for each in zip(average, weights, strict=True)]
