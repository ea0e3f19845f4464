"""Asynchronous updates: workers compute, parameter servers hold the variables.

One process, the chief, gives whole batches to whichever worker is free. A worker reads the
variables, computes what they should become, and adds the difference to what they are by then, so
that no update is lost. Dean et al. 2012, "Large Scale Distributed Deep Networks" (downpour SGD).

A worker that is killed loses nothing: what it was at is done by another, or by itself when it is
back, and may then be done twice. Killed workers are taken up again once all of them are back. A
parameter server that is killed takes the variables with it: every call ends in a UserError.
"""

import atexit
import contextlib
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from replicator.collectives.collective_order import OrderRecord
from replicator.launch.tf_config import Cluster, read_cluster
from replicator.runs.errors import UserError
from replicator.strategies.base import Call, InputFn, Replicator, StepFn
from replicator.strategies.server_processes import answers, present, serve, speaks
from replicator.strategies.snapshots import Snapshots

WORKER_SECONDS = 120.0  # without an update while a worker is silent, after which a run gives up
SERVER_SECONDS = 30.0  # that a parameter server may be silent
LEAVING_SECONDS = 10  # that threads of TensorFlow may hold up a process whose server is gone
LAST_SECONDS = 60.0  # the same, after which the process ends whatever it waits for
_LOOK_SECONDS, _AHEAD = 1.0, 2


class ParameterServerReplicator(Replicator):
    """What `parameter_server` returns: the one replica of a step is the worker that makes it.

    Attributes:
      num_updates_at_once: workers, which is how many updates may be under way.
    """

    def __init__(self):
        super().__init__("parameter_server", is_async=True)
        cluster = _checked(read_cluster())
        if cluster.task != "chief":
            serve(cluster)
        # Without it a call to a process that is gone waits instead of failing.
        os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")
        self.cluster = _of_present(cluster)
        self.num_updates_at_once = len(self.cluster.addresses["worker"])
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(self.cluster.addresses), "", "chief", 0, rpc_layer="grpc"
        )
        self._strategy = tf.distribute.ParameterServerStrategy(resolver)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self._strategy)
        self._snapshots = Snapshots()
        threading.Thread(target=_end_if_stuck, args=(self.cluster,), daemon=True).start()
        atexit.register(_leave_in_time, self.cluster)

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """A context in which what TensorFlow says of a missing parameter server is a UserError.

        Calls of compiled steps need none; whatever else reads or sets variables does.
        """
        try:
            yield
        except tf.errors.OpError as error:
            for index, address in enumerate(self.cluster.addresses["ps"]):
                if f"/job:ps/replica:0/task:{index}" in str(error) or not answers(address):
                    raise UserError(_server_gone(index, address)) from error
            raise

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """A context whose variables lie on the parameter servers."""
        with tf.variable_creator_scope(self._snapshots.create), self._strategy.scope():
            yield

    def dataset(self, input_fn: InputFn):
        """The dataset, which the chief reads."""
        return input_fn(tf.distribute.InputContext()).prefetch(_AHEAD)

    def batches(self, dataset: tf.data.Dataset):
        """The dataset, which the chief reads; an update takes a whole batch."""
        return dataset.prefetch(_AHEAD)

    def compile(self, step_fn: StepFn, steps_per_call: int = 1) -> Call:
        """Updates that workers make; see `Updates`."""
        if steps_per_call < 1:
            raise ValueError(f"`steps_per_call` must be at least 1, got {steps_per_call}.")
        return Updates(self, step_fn, steps_per_call)

    def update(self, variables, values) -> None:
        """Adds to each variable, atomically, the difference of its value to what the step read."""
        for variable, value in zip(variables, values, strict=True):
            value = tf.convert_to_tensor(value, variable.dtype)
            if variable.dtype.is_floating or variable.dtype.is_integer:
                variable.assign_add(value - variable)
            else:
                variable.assign(value)

    def _replica_id(self):
        return 0


class Updates:
    """A compiled step: a call gives the outputs of one update, while others are under way."""

    def __init__(self, replicator: ParameterServerReplicator, step_fn: StepFn, steps_per_call: int):
        self._replicator, self._step_fn = replicator, step_fn
        self._steps_per_call = steps_per_call
        self._function = tf.function(self._step, autograph=False)
        self._finished: queue.Queue = queue.Queue()
        self._health = _Health(replicator.cluster)
        self._failure: UserError | None = None
        self._structure: Any = None
        self._told: list | None = None
        self.under_way = 0

    def __call__(self, iterator, at_most: int | None = None):
        """The outputs of an update that has finished.

        If its worker was killed after the update and before it told, they are those of the update
        before it.

        Args:
          iterator: over `batches` or `dataset`.
          at_most: updates that may be under way, the one that is returned included; None: one for
            each worker. More are never begun, so that a run can end at its last step.

        Raises:
          tf.errors.OutOfRangeError: there is no batch and no update under way.
          UserError: a parameter server is gone, or all workers have been for a time.
        """
        for _ in range(self._steps_per_call):
            outputs = self._one(iterator, at_most)
        return outputs

    def join(self) -> list:
        """The outputs of all updates under way, once they have finished."""
        return [self._next_outputs() for _ in range(self.under_way)]

    def _one(self, iterator, at_most: int | None):
        limit = self._replicator.num_updates_at_once
        limit = limit if at_most is None else max(1, min(limit, at_most))
        while self.under_way < limit:
            try:
                batch = next(iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                if not self.under_way:
                    raise tf.errors.OutOfRangeError(None, None, "End of sequence") from None
                break
            self._begin(batch)
        return self._next_outputs()

    def _begin(self, batch) -> None:
        with self._replicator.explained():
            remote = self._replicator._coordinator.schedule(self._function, args=(batch,))
        self.under_way += 1
        # TensorFlow has no way to wait for any of several.
        threading.Thread(target=self._wait, args=(remote,), daemon=True).start()

    def _wait(self, remote) -> None:
        try:
            self._finished.put((remote.fetch(), None))
        except Exception as error:  # handed to the thread that asks for outputs
            self._finished.put((None, error))

    def _next_outputs(self):
        if self._failure is not None:
            raise self._failure
        try:
            outputs = self._waited_for()
        except UserError as failure:
            self._failure = failure
            raise
        leaves = iter(outputs)
        return tf.nest.map_structure(
            lambda there: tf.convert_to_tensor(next(leaves)) if there else None, self._structure
        )

    def _waited_for(self):
        self._health.begin()
        while True:
            try:
                outputs, error = self._finished.get(timeout=_LOOK_SECONDS)
                break
            except queue.Empty:
                self._health.check()
        self.under_way -= 1
        try:
            with self._replicator.explained():
                if error is not None:
                    raise error
            self._told = outputs
        except tf.errors.UnavailableError:
            # What a killed worker had not done, another does; so this was done and not fetched.
            if self._told is None:
                raise
        return self._told

    def _step(self, batch):
        strategy = self._replicator._strategy
        outputs = strategy.run(self._replica_step, args=(batch,))
        return tf.nest.map_structure(lambda v: strategy.experimental_local_results(v)[0], outputs)

    def _replica_step(self, batch):
        replicator = self._replicator
        with replicator._step(0, OrderRecord()), replicator._snapshots.of_step():
            outputs = self._step_fn(batch)
        # What comes back from a worker may hold no None.
        self._structure = tf.nest.map_structure(lambda leaf: leaf is not None, outputs)
        leaves = tf.nest.flatten(outputs)
        return [tf.convert_to_tensor(leaf) for leaf in leaves if leaf is not None]


class _Health:
    """Whether the processes of a cluster answer, while an update is waited for."""

    def __init__(self, cluster: Cluster):
        self._servers, self._workers = cluster.addresses["ps"], cluster.addresses["worker"]
        self.begin()

    def begin(self) -> None:
        """Starts to wait."""
        self._spoken = dict.fromkeys([*self._servers, *self._workers], time.monotonic())

    def check(self) -> None:
        """Raises UserError for a server that is gone, or a process that is silent for too long."""
        for index, address in enumerate(self._servers):
            if not answers(address):
                raise UserError(_server_gone(index, address))
            if self._silent_seconds(address) > SERVER_SECONDS:
                raise UserError(_server_silent(index, address, SERVER_SECONDS))
        for index, address in enumerate(self._workers):
            if self._silent_seconds(address) > WORKER_SECONDS:
                raise UserError(
                    f"Worker {index} ({address}) has not answered for {WORKER_SECONDS:.0f} "
                    "seconds, nor has an update been finished."
                )

    def _silent_seconds(self, address: str) -> float:
        if speaks(address):
            self._spoken[address] = time.monotonic()
        return time.monotonic() - self._spoken[address]


def _end_if_stuck(cluster: Cluster) -> None:
    """Ends this process where it could wait for ever.

    That is where it reads from a server that was stopped, and when it joins threads of TensorFlow
    that wait for a process that is gone.
    """
    spoken = dict.fromkeys(cluster.addresses["ps"], time.monotonic())
    leaving = None
    while True:
        time.sleep(LAST_SECONDS / 10)
        if not threading.main_thread().is_alive():
            leaving = time.monotonic() if leaving is None else leaving
            late = time.monotonic() - leaving > LEAVING_SECONDS
            if late and not _all_answer(cluster):
                os._exit(2)
        for index, address in enumerate(spoken):
            # One that is gone is an error at once, wherever it is read.
            if speaks(address) or not answers(address):
                spoken[address] = time.monotonic()
            elif time.monotonic() - spoken[address] > LAST_SECONDS:
                print(_server_silent(index, address, LAST_SECONDS), file=sys.stderr, flush=True)
                os._exit(2)


def _leave_in_time(cluster: Cluster) -> None:
    """Lets an alarm end this process, should TensorFlow wait for a process that is gone.

    By then Python's threads have ended, and only a signal is heard.
    """
    if not _all_answer(cluster):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(LEAVING_SECONDS)


def _all_answer(cluster: Cluster) -> bool:
    return all(answers(a) for kind in ("ps", "worker") for a in cluster.addresses[kind])


def _server_gone(index: int, address: str) -> str:
    return f"Parameter server {index} ({address}) is gone, and with it the variables it held."


def _server_silent(index: int, address: str, seconds: float) -> str:
    return f"Parameter server {index} ({address}) has not answered for {seconds:.0f} seconds."


def _checked(cluster: Cluster | None) -> Cluster:
    if cluster is None:
        raise UserError("The strategy parameter_server needs TF_CONFIG; `onepass launch` sets it.")
    for kind in ("chief", "ps", "worker"):
        if not cluster.addresses.get(kind):
            raise UserError(
                f"The strategy parameter_server needs a {kind} in TF_CONFIG, there is none."
            )
    if len(cluster.addresses["chief"]) > 1:
        raise UserError("The strategy parameter_server needs one chief in TF_CONFIG, not several.")
    return cluster


def _of_present(cluster: Cluster) -> Cluster:
    """The cluster without workers that are not there."""
    workers, there = cluster.addresses["worker"], present(cluster)
    absent = [address for index, address in enumerate(workers) if index not in there]
    if absent:
        print(f"Going on without workers {', '.join(absent)}.", file=sys.stderr, flush=True)
    some = [workers[index] for index in there]
    return Cluster({**cluster.addresses, "worker": some}, cluster.task, cluster.index)
