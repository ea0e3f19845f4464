"""Small models, optimisers and batches of steps that replicas run."""

import keras
import numpy as np
import tensorflow as tf
import tf_keras

from onepass.replicator import strategies

STEPS = 5
KINDS = ("keras", "keras_sgd", "tf_keras", "tf_keras_sgd", "legacy", "own")


def replicator_of(size):
    return strategies.single() if size == 1 else strategies.local(size)


def endless(*batches):
    return tf.data.Dataset.from_tensor_slices(np.stack(batches)).repeat()


def run_step(replicator, function):
    """Return what one step gives that calls `function(replicator)`."""
    rows = iter(replicator.batches(endless(np.zeros((4, 1), np.float32))))
    return replicator.compile(lambda batch: function(replicator))(rows)


def copies(variable):
    return [v.numpy() for v in getattr(variable, "values", [variable])]


class Momentum:
    """An optimiser of a user's own: plain variables, plain assigns."""

    def __init__(self):
        self.slots = None

    def build(self, variables):
        self.slots = [
            tf.Variable(tf.zeros_like(v), trainable=False, name=f"momentum/{v.name.split(':')[0]}")
            for v in variables
        ]

    def apply_gradients(self, pairs):
        for slot, (gradient, variable) in zip(self.slots, pairs, strict=True):
            value = 0.9 * slot + gradient
            slot.assign(value)
            variable.assign(variable - 0.05 * value)


def optimizer_of(kind):
    # The clipping tells the mean of the gradients from their sum and from one replica's own.
    makes = {
        "keras": lambda: keras.optimizers.Adam(0.05, global_clipnorm=0.1),
        "keras_sgd": lambda: keras.optimizers.SGD(0.02, momentum=0.9),
        "tf_keras": lambda: tf_keras.optimizers.Adam(0.05, global_clipnorm=0.1),
        "tf_keras_sgd": lambda: tf_keras.optimizers.SGD(0.02, momentum=0.9),
        "legacy": lambda: tf_keras.optimizers.legacy.Adam(0.05),
        "own": Momentum,
    }
    return makes[kind]()


def batches():
    generator = np.random.default_rng(3)
    return endless(*generator.normal(size=(3, 8, 4)).astype(np.float32))


def weights_of(replicator):
    """Returns two variables, the second on the last logical device."""
    generator = np.random.default_rng(4)
    first, second = generator.normal(size=(4, 6)), generator.normal(size=(6, 1))
    with replicator.scope():
        a = tf.Variable(first, dtype=tf.float32)
        with replicator.logical_device(replicator.num_logical_devices - 1):
            b = tf.Variable(second, dtype=tf.float32)
    return [a, b]


def loss_of(replicator, weights, batch):
    hidden = tf.tanh(batch @ weights[0])
    with replicator.logical_device(replicator.num_logical_devices - 1):
        return tf.reduce_mean(tf.square(hidden @ weights[1] - 1.0))


def trained(replicator, kind, steps_per_call=1):
    """Returns the weights after STEPS steps, and the losses that the calls gave."""
    weights = weights_of(replicator)
    with replicator.scope():
        optimizer = replicator.wrap_optimizer(optimizer_of(kind))
        if hasattr(optimizer.optimizer, "build"):
            optimizer.build(weights)
        else:
            optimizer._create_all_weights(weights)

    def step(batch):
        with tf.GradientTape() as tape:
            loss = loss_of(replicator, weights, batch)
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    call, iterator = replicator.compile(step, steps_per_call), iter(replicator.batches(batches()))
    losses = [float(call(iterator)) for _ in range(STEPS // steps_per_call)]
    return [w.numpy() for w in weights], losses
