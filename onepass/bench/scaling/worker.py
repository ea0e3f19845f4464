"""One process of a strategy: it makes the steps and sums that it is asked for and times them.

Started as `python -m onepass.bench.scaling.worker DESCRIPTOR`, the end of a pipe, from which it
reads requests and to which it writes answers, objects in JSON. It ends when the pipe is closed.
"""

import os
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import tensorflow as tf

from onepass.bench.scaling.models import trainable
from onepass.bench.scaling.traffic import Reduced, ReducedCounter
from onepass.bench.worker_process import median_seconds, serve
from replicator import strategies
from replicator.planning.process_use import beside_seconds, needed_bytes, timed
from replicator.planning.trainable import Trainable
from replicator.training.step import compile_replicated_step

SUMS_A_CALL = 10  # of small tensors, so that what the call itself takes is spread out
SMALL_BYTES = 2**20
EARLY_CALLS = 3  # before an exchange takes what it will take
Call = Callable[[], object]


class Worker:
    """A replicator with a model on it, and a compiled program for everything asked for.

    Args:
      strategy: single, local:N, or multi_worker or parameter_server (with TF_CONFIG).
      preset, clip_samples: what is trained.
      limit_seconds: how long to wait for the other processes.
    """

    def __init__(self, strategy: str, preset: str, clip_samples: int, limit_seconds: float):
        self.replicator = (
            strategies.multi_worker(join_seconds=limit_seconds)
            if strategy == "multi_worker"
            else strategies.from_environment(strategy)
        )
        self._preset, self._clip_samples = preset, clip_samples
        self._counter = ReducedCounter(self.replicator)
        self._model: Trainable | None = None
        self._steps: dict[int, tuple[Call, Reduced]] = {}
        self._besides: dict[int, Call] = {}
        self._sums: dict[int, Call] = {}
        self._exchanges: dict[tuple[int, int], Call] = {}

    def step(self, rows: int, count: int) -> dict[str, float]:
        """Seconds of a training step with so many rows a replica, and what it reduces.

        count: steps timed; the first of a size is not one of them.
        """
        if rows not in self._steps:
            call = self._compiled(self.model(), rows)
            call()
            self._steps[rows] = call, self._counter.last()
        call, reduced = self._steps[rows]
        return {
            "seconds": median_seconds(call, count),
            "bytes": reduced.size_bytes,
            "collectives": reduced.collectives,
        }

    def beside(self, rows: int, count: int) -> dict[str, float]:
        """Seconds of such a step while one of another model is made in this process.

        count: steps timed of each. One of this size was made before.
        """
        if rows not in self._besides:
            with self.replicator.scope():
                self._besides[rows] = self._compiled(self._trainable(), rows)
            self._besides[rows]()
        call, _ = self._steps[rows]
        return {"seconds": beside_seconds([call, self._besides[rows]], 0.0, count)}

    def all_sum(self, size_bytes: int, count: int) -> dict[str, float]:
        """Seconds of an `all_sum` of so many bytes of float32, of at least `count` of them."""
        sums = SUMS_A_CALL if size_bytes <= SMALL_BYTES else 1
        if size_bytes not in self._sums:
            self._sums[size_bytes] = self._summing(size_bytes, sums)
            self._sums[size_bytes]()
        return {"seconds": median_seconds(self._sums[size_bytes], -(-count // sums)) / sums}

    def profile(self, rows: int, steps: int) -> dict[str, Any]:
        """A step with so many rows a replica: the fields of a `Run`, and sizes of the model.

        steps: timed, as many in all processes. One of this size was made before.
        """
        call, _ = self._steps[rows]
        model, shares = self.model(), self.replicator.num_replicas // self.replicator.num_workers
        held = shares * (model.state_bytes + model.resized(rows, 1).batch_bytes)
        needed = needed_bytes(call, held)
        return {
            **timed(call, 1, 0.0, steps),
            "memory_bytes": needed and needed / shares,
            "operations": {},
            "state_bytes": model.state_bytes,
            "reduced_bytes": model.reduced_bytes,
            "variables": model.num_variables,
        }

    def exchange(self, variables: int, size_bytes: int, seconds: float) -> dict[str, float]:
        """Seconds of an update of so many variables, of so many bytes each, without computing.

        seconds: that it is repeated for, at least.
        """
        if (variables, size_bytes) not in self._exchanges:
            self._exchanges[variables, size_bytes] = self._exchanging(variables, size_bytes)
        found = timed(self._exchanges[variables, size_bytes], 1, seconds)
        return {"seconds": found["seconds"][0]}

    def model(self) -> Trainable:
        """The model, made once."""
        if self._model is None:
            with self.replicator.scope():
                self._model = self._trainable()
        return self._model

    def _trainable(self) -> Trainable:
        return trainable(self._preset, self._clip_samples)

    def _compiled(self, model: Trainable, rows: int) -> Call:
        replicator = self.replicator
        batch = model.resized(rows * replicator.num_replicas, 1).batch()
        batches = tf.data.Dataset.from_tensors(batch).repeat()
        step = compile_replicated_step(model.state, model.loss, model.jit_compile, replicator, {})
        iterator = iter(replicator.batches(batches))
        return lambda: float(step(iterator)["loss"])

    def _exchanging(self, variables: int, size_bytes: int) -> Call:
        replicator = self.replicator
        with replicator.scope():
            held = [tf.Variable(tf.zeros([size_bytes // 4])) for _ in range(variables)]

        def step(tick):
            replicator.update(held, [tf.identity(each) + tick[0] for each in held])
            return tick[0]

        call = replicator.compile(step)
        ticks = tf.data.Dataset.from_tensors(tf.zeros([replicator.num_replicas])).repeat()
        iterator = iter(replicator.batches(ticks))
        for _ in range(EARLY_CALLS):
            call(iterator)
        return lambda: call(iterator)

    def _summing(self, size_bytes: int, sums: int) -> Call:
        replicator = self.replicator
        with replicator.scope():
            value = tf.Variable(tf.zeros([size_bytes // 4]), trainable=False)
            first = tf.Variable(tf.zeros([1]), trainable=False)

        def step(_):
            total = replicator.all_sum(tf.identity(value))
            replicator.update([first], [total[:1]])

        call = replicator.compile(step, sums)
        ticks = tf.data.Dataset.from_tensors(tf.zeros([replicator.num_replicas])).repeat()
        iterator = iter(replicator.batches(ticks))
        return lambda: call(iterator)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), Worker)
    os._exit(0)  # without waiting for other processes, which may be gone
