"""A custom model as the teacher of a student that samples in one pass.

python -m examples.own_teacher
"""

import time

import keras
import numpy as np
import tensorflow as tf
import tyro

import onepass
from onepass import likelihoods

layers = keras.layers


def recordings(num: int, length: int) -> np.ndarray:
    """Return noisy tones, float32 [num, length] in [-1, 1]."""
    generator = np.random.default_rng(0)
    phase = generator.uniform(0, 6.3, [num, 1]) + 0.2 * np.arange(length)
    return (0.5 * np.sin(phase) + generator.normal(0, 0.02, phase.shape)).astype(np.float32)


def power(drawn: tf.Tensor, recorded: tf.Tensor) -> tf.Tensor:
    """Return the squared difference of the powers of samples and recordings, [batch]."""
    return tf.square(tf.reduce_mean(drawn**2 - recorded**2, -1))


def main(steps: int = 1000, length: int = 800) -> None:
    """Train a teacher, distil it, and time both.

    Args:
      steps: updates of each.
      length: elements of a recording and of a sample.
    """
    data = recordings(64, length)
    inputs = keras.Input([None, 1])
    h = layers.Conv1D(32, 2, padding="causal")(inputs)
    for dilation in (1, 2, 4, 8, 16):
        h = h + layers.Conv1D(32, 2, padding="causal", dilation_rate=dilation, activation="tanh")(h)
    network = keras.Model(inputs, layers.Dense(2)(h))
    teacher = onepass.Autoregressive(network, likelihoods.Gaussian(levels=65536))
    onepass.fit(teacher, data, steps=steps)
    terms = onepass.KL(), onepass.Compared(power, 10.0)
    student = onepass.distill(teacher, data, steps=steps, loss=terms)
    for name, model in (("teacher", teacher), ("student", student)):
        sound = model.sample(1, length, seed=1)
        start = time.monotonic()
        model.sample(1, length, seed=2)
        print(f"{name}: {sound.std():.3f}, {length / (time.monotonic() - start):,.0f} elements/s")


if __name__ == "__main__":
    tyro.cli(main)
