"""Asynchronous updates of a `Line`, as the program of every task of TF_CONFIG.

    asynchronous_run.py STEPS PAUSE_SECONDS START_SECONDS SERVER_SECONDS OUT.npz

The chief waits START_SECONDS for the others, SERVER_SECONDS for a silent parameter server and
PAUSE_SECONDS after each update, says on a line which update it was, and leaves what the variables
are in the end.
"""

import sys
import time

import numpy as np
import tensorflow as tf
from toys import Line, line_batch

from onepass.foundation.rules import UserError
from onepass.replicator import strategies
from onepass.replicator.strategies import asynchronous as parameter_server
from onepass.replicator.strategies import asynchronous as servers
from onepass.replicator.training.config import OptimizerConfig
from onepass.replicator.training.state import TrainState, compile_replicated_step, compile_step

ADAM = OptimizerConfig(learning_rate=1e-2, warmup_steps=2, clip_norm=5.0)


def data(steps: int) -> tf.data.Dataset:
    batches = [line_batch(i) for i in range(steps)]
    return tf.data.Dataset.from_tensor_slices(
        {name: np.stack([b[name] for b in batches]) for name in batches[0]}
    )


def alone(steps: int) -> dict[str, np.ndarray]:
    """Return the variables after the same steps on one device."""
    line = Line()
    state = TrainState(line, ADAM, steps)
    step = compile_step(state, line.loss, False)
    for batch in data(steps):
        step(batch)
    return state.arrays()


def main(steps: int, pause_seconds: float, output: str) -> None:
    replicator = strategies.parameter_server()
    with replicator.scope():
        line = Line()
        state = TrainState(line, ADAM, steps)
        threes = tf.Variable([0, 0], trainable=False)

    def step(batch):
        replicator.update([threes], [threes + 3])
        return {"sum": tf.reduce_sum(batch["x"]), "nothing": None}

    print(f"with {replicator.num_updates_at_once} workers", flush=True)
    call = compile_replicated_step(state, line.loss, False, replicator, {})
    batches = iter(replicator.batches(data(steps)))
    for update in range(steps):
        metrics = call(batches, max_pending=steps - update)
        print(f"update {update} loss {float(metrics['loss']):.4f}", flush=True)
        time.sleep(pause_seconds)
    left = call.num_pending
    counting = replicator.compile(step, steps_per_call=2)
    batches = iter(replicator.batches(data(steps)))
    counting(batches)
    joined = counting.join()
    rest = sum(1 for _ in until_end(counting, batches))
    silent = replicator.compile(lambda batch: replicator.update([threes], [threes + 1000]))
    print(f"without outputs: {silent(iter(replicator.batches(data(1))))}", flush=True)
    np.savez(output, left=left, threes=threes.numpy(), rest=rest, joined=len(joined))
    np.savez(f"{output}.state.npz", **state.arrays())


def until_end(call, batches):
    """The outputs of a call until there are no more batches."""
    try:
        while True:
            yield call(batches)
    except tf.errors.OutOfRangeError:
        return


if __name__ == "__main__":
    steps, *seconds, output = sys.argv[1:]
    pause_seconds, servers.START_SECONDS, parameter_server.SERVER_SILENCE_SECONDS = map(
        float, seconds
    )
    try:
        main(int(steps), pause_seconds, output)
    except UserError as error:
        print(f"refused: {error}", flush=True)
        sys.exit(2)
