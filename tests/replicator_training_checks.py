"""Training that tests/test_replicator.py compares: run in a process with four logical CPUs."""

import keras
import numpy as np
import tensorflow as tf
import tf_keras
from replicator_checks import TRAINED, endless, replicator_of

from onepass.foundation.errors import UserError
from onepass.replicator import strategies

STEPS = 5


class Momentum:
    """An optimiser of a user's own: plain variables, plain assigns."""

    def __init__(self):
        self.slots = None

    def build(self, variables):
        self.slots = [tf.Variable(tf.zeros_like(v), trainable=False) for v in variables]

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


KINDS = ("keras", "keras_sgd", "tf_keras", "tf_keras_sgd", "legacy", "own")


def check_sharded_optimizers():
    replicator = strategies.sharded({"batch": 2, "model": 2}, {})
    return {kind: trained(replicator, kind) for kind in KINDS if kind != "legacy"}


def refusal_of(function):
    try:
        function()
    except UserError as error:
        return str(error)
    return None


def check_refusals_of_shards():
    replicator = strategies.sharded({"batch": 2, "model": 2}, {})
    with replicator.scope():
        count = tf.Variable(0.0, name="count")

    def step(batch):
        tf.cond(tf.reduce_sum(batch) > 0, lambda: count.assign_add(1.0).read_value(), lambda: 0.0)
        return count + 1.0

    call, rows = replicator.compile(step), iter(replicator.batches(batches()))
    legacy = optimizer_of("legacy")
    return refusal_of(lambda: replicator.wrap_optimizer(legacy)), refusal_of(lambda: call(rows))


def check_optimizers():
    return {kind: {size: trained(replicator_of(size), kind) for size in TRAINED} for kind in KINDS}


def check_steps_per_call():
    return {size: trained(replicator_of(size), "own", STEPS) for size in TRAINED}


def check_logical_devices():
    cpus = [f"/device:CPU:{k}" for k in range(4)]
    replicators = {
        "two on one": strategies.single(logical_devices=cpus[1:3]),
        "two on each of two": strategies.local(cpus, devices_per_replica=2),
    }
    devices = {}
    for name, replicator in replicators.items():
        variables = weights_of(replicator)
        devices[name] = [[v.device[-5:] for v in variable.values] for variable in variables]
    return devices, {k: trained(replicator, "own") for k, replicator in replicators.items()}


def check_ops_on_logical_devices():
    replicator, found = strategies.local(4, devices_per_replica=2), []

    def step(batch):
        with replicator.logical_device(1):
            found.append((batch + 1.0).device[-5:])
        return None

    replicator.compile(step)(iter(replicator.batches(batches())))
    return found


def check_training():
    results = {}
    for size in TRAINED:
        replicator = replicator_of(size)
        weights = weights_of(replicator)

        def local(batch, replicator=replicator, weights=weights):
            with tf.GradientTape() as tape:
                loss = loss_of(replicator, weights, batch)
            return {"loss": loss}, tape.gradient(loss, weights)

        def moved(figures, gradients, weights=weights):
            return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)], figures

        call = replicator.compile_training(local, moved, weights)
        iterator = iter(replicator.batches(batches()))
        losses = [float(call(iterator)["loss"]) for _ in range(STEPS)]
        results[size] = [w.numpy() for w in weights], losses
    return results


def check_loss_scaling():
    """Returns by size the weight and the scales, one row of step 3 overflowing in float16."""
    rows = np.ones([STEPS, 8, 1], np.float32)
    rows[2, -1] = 1e4
    results = {}
    for size in TRAINED:
        replicator = replicator_of(size)
        with replicator.scope():
            weight = tf.Variable([2.0])
            inner = keras.optimizers.SGD(0.1)
            scaling = keras.optimizers.LossScaleOptimizer(inner, 1024.0, dynamic_growth_steps=2)
            scaling.build([weight])
            optimizer = replicator.wrap_optimizer(scaling)

        def step(batch, weight=weight, optimizer=optimizer):
            with tf.GradientTape() as tape:
                half = tf.cast(weight, tf.float16) * tf.cast(batch, tf.float16)
                loss = optimizer.scale_loss(tf.reduce_mean(tf.cast(half * half, tf.float32)))
            optimizer.apply([tape.gradient(loss, weight)], [weight])
            return tf.convert_to_tensor(optimizer.dynamic_scale)

        call = replicator.compile(step)
        iterator = iter(replicator.batches(tf.data.Dataset.from_tensor_slices(rows)))
        results[size] = [float(call(iterator)) for _ in range(STEPS)], weight.numpy()
    return results


def check_run():
    replicator = replicator_of(2)
    with replicator.scope():
        count = tf.Variable(0, trainable=False)

    def step(batch):
        replicator.update([count], [count + 1])
        return count + 0

    def run(num_steps):
        return replicator.run(step, lambda context: batches(), num_steps, steps_per_call=3)

    try:
        return int(run(6)), run(5)
    except ValueError as error:
        return int(count.numpy()), str(error)
