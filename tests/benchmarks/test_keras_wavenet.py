"""`benchmarks.keras_wavenet` measures a network whose window is what it says."""

import keras
import numpy as np
import tensorflow as tf

from benchmarks import keras_wavenet


def test_a_small_wavenet_is_measured_and_sees_its_window_and_no_more(monkeypatch):
    monkeypatch.setattr(keras_wavenet, "NAIVE_SAMPLES", 2)
    keras.utils.set_random_seed(0)  # by chance none of four rectified units lets a gradient pass
    network, window = keras_wavenet.wavenet(2, (1, 2), 16), 2 * 3 + 2
    found = keras_wavenet.measure(network, window, 20)
    assert found.keys() == {"first sound", "cached", "naive window", "naive window, XLA"}
    assert min(found.values()) > 0.0
    inputs = tf.constant(np.linspace(-1, 1, 12, dtype=np.float32)[None, :, None])
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        last = tf.reduce_sum(network(inputs)[:, -1])
    reached = np.nonzero(tape.gradient(last, inputs)[0, :, 0])[0]
    assert reached[0] >= 12 - window
