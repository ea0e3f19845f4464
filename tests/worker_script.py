"""A user's file for tests/test_multi_worker.py: the same for one process and for several."""

import sys

import numpy as np
import tensorflow as tf

from onepass.foundation.rules import UserError
from onepass.replicator import strategies

STEPS = 5
mode, output = sys.argv[1:]
replicator = (
    strategies.multi_worker(timeout_seconds=10, join_seconds=100)
    if mode != "single"
    else strategies.single()
)
worker = replicator.worker_index
generator = np.random.default_rng(0)
with replicator.scope():
    weights = [tf.Variable(generator.normal(size=(4, 3)), dtype=tf.float32), tf.Variable([0.5] * 3)]
    slots = [tf.Variable(tf.zeros_like(w), trainable=False) for w in weights]


class Momentum:
    def apply_gradients(self, pairs):
        for slot, (gradient, variable) in zip(slots, pairs, strict=True):
            value = 0.9 * slot + gradient
            slot.assign(value)
            variable.assign(variable - 0.05 * value)


optimizer = replicator.wrap_optimizer(Momentum())


def step(batch):
    if mode == "order" and worker == 1:
        replicator.all_gather(tf.zeros([2]))
    if mode == "shape":
        replicator.all_sum(tf.zeros([2 + worker]))
    if mode == "unknown_shape":
        nothing = tf.cast(0 * batch["row"][0], tf.int32)  # as far as tracing knows, anything
        replicator.all_sum(tf.zeros(tf.reshape(2 + worker + nothing, [1])))
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.tanh(batch["x"] @ weights[0]) * weights[1] - 1.0))
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
    return {"loss": loss, "rows": replicator.all_gather(batch["row"]), "id": replicator.replica_id}


rows = 8
batches = tf.data.Dataset.from_tensor_slices(
    {
        "x": generator.normal(size=(3, rows, 4)).astype(np.float32),
        "row": np.arange(3 * rows).reshape(3, rows),
    }
).repeat()
steps_per_call = STEPS if mode == "steps" else 1
iterator = iter(replicator.batches(batches))
seen, losses = [], []
try:
    call = replicator.compile(step, steps_per_call)
    for _ in range(STEPS // steps_per_call):
        outputs = call(iterator)
        seen.append(outputs["rows"].numpy().ravel())
        losses.append(outputs["loss"].numpy())
except UserError as error:
    print(f"refused: {type(error).__name__}: {error}")
    sys.exit(2)
np.savez(
    output if replicator.is_chief else f"{output}.other.npz",
    seen=seen,
    losses=losses,
    first=weights[0].numpy(),
    second=weights[1].numpy(),
    facts=[replicator.num_replicas, replicator.num_workers, worker, int(outputs["id"])],
)
