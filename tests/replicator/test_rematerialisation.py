"""Layers computed again for the gradient: the same gradients, and less that is kept."""

import numpy as np
import pytest
import tensorflow as tf

from replicator.training.rematerialisation import recomputed, rematerialising

LAYERS = 3


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_layer_is_computed_again_with_the_same_gradients(jit_compile):
    kernels = [tf.Variable(tf.eye(4) * (0.5 + i)) for i in range(LAYERS)]
    given = tf.constant(np.random.default_rng(0).normal(size=(5, 4)), tf.float32)

    def layer(kernel, x, pair):
        scale, absent = pair
        assert absent is None
        return {"x": tf.tanh(x @ kernel) * scale}

    def gradients(x, scale):
        with tf.GradientTape() as tape:
            tape.watch((x, scale))
            hidden = x
            for kernel in kernels:
                hidden = recomputed(lambda *a, kernel=kernel: layer(kernel, *a), hidden,
                                    (scale, None))["x"]  # fmt: skip
            value = tf.reduce_sum(hidden**2)
        return tape.gradient(value, [x, scale, *kernels])

    found = []
    for wanted in (False, True):
        traced = tf.function(gradients, jit_compile=jit_compile, autograph=False)
        with rematerialising(wanted):
            found.append([v.numpy() for v in traced(given, tf.constant(0.7))])
            graph = traced.get_concrete_function(given, tf.constant(0.7)).graph
        count = sum(op.type == "Tanh" for op in graph.get_operations())
        assert count == LAYERS * (1 + wanted)
    for plain, again in zip(*found, strict=True):
        np.testing.assert_allclose(again, plain, rtol=1e-6)
