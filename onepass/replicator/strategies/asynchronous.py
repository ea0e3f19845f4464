"""Asynchronous updates: workers compute them, and parameter servers store the variables.

One process, the chief, schedules whole batches on whichever worker is free. A worker reads the
variables once, computes their new values, and adds the difference to the current values, so no
update is lost. Dean et al. 2012, "Large Scale Distributed Deep Networks" (downpour SGD).

If a worker is killed, its update is computed again and may be applied twice. Killed workers take
part again once all of them have restarted.
"""

import atexit
import contextlib
import math
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.ops import resource_variable_ops

from onepass.foundation.rules import UserError
from onepass.replicator.collectives import CollectiveRecord
from onepass.replicator.launch.tf_config import Task, read_tf_config
from onepass.replicator.strategies import base
from onepass.replicator.strategies.coordination import connect_to, missing_tasks, refusal

_OPTIONS = (
    *("initial_value", "trainable", "name", "dtype", "shape", "constraint"),
    "distribute_strategy",  # a strategy identifies its variables by it
)
START_SECONDS = 60.0  # the chief's wait for workers and servers to start
CHIEF_SECONDS = 600.0  # a server's wait for the chief to start
CHIEF_LOST_SECONDS = 10.0  # a chief that accepts no connection for this long has ended
_CONNECT_SECONDS, _CHIEF_POLL_SECONDS = 2.0, 0.5
# The connection preface of an HTTP/2 client with empty SETTINGS (RFC 9113, 3.4). A running gRPC
# server answers with its preface; a suspended one still accepts connections, but does not answer.
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
# A run fails if a worker does not answer for this time, and no update finishes, ...
WORKER_SILENCE_SECONDS = 120.0
SERVER_SILENCE_SECONDS = 30.0  # ... or a parameter server does not answer for this time.
EXIT_SECONDS = 10  # delay of the exit allowed to TensorFlow's threads after a process has ended
STUCK_SECONDS = 60.0  # silence of a server after which this process is forced to end
_POLL_SECONDS = 1.0


class Snapshots:
    """The values that the step being traced by a thread has read so far."""

    def __init__(self) -> None:
        self._thread = threading.local()

    @contextlib.contextmanager
    def of_step(self) -> Iterator[None]:
        """Record the reads of a step that this thread traces inside the block."""
        self._thread.graph = tf.compat.v1.get_default_graph()
        self._thread.values = {}
        try:
            yield
        finally:
            self._thread.values = None

    def values(self) -> dict[int, Any] | None:
        """Return the values read, by variable `id`; None outside a step or in nested functions."""
        values = getattr(self._thread, "values", None)
        if values is None or tf.compat.v1.get_default_graph() is not self._thread.graph:
            return None
        return values

    def create(
        self, next_creator: Callable[..., tf.Variable], **options: Any
    ) -> "_SnapshotVariable":
        """Create a variable, as a creator for `tf.variable_creator_scope`."""
        known = {key: options[key] for key in _OPTIONS if options.get(key) is not None}
        return _SnapshotVariable(self, known)


def recorded_read(variable: tf.Variable, value: tf.Tensor) -> tf.Tensor:
    """Return the value, recorded by gradient tapes as a read (there is no public API for it)."""
    resource_variable_ops.variable_accessed(variable)
    with record.stop_recording():
        value = tf.identity(value)
    record.record_operation(
        "ReadVariableOp", [value], [variable.handle], lambda upstream: [upstream]
    )
    return value


class _SnapshotVariable(resource_variable_ops.ResourceVariable):
    """A variable that a step reads only once, unless the step sets it between reads."""

    def __init__(self, snapshots: Snapshots, options: dict[str, Any]):
        self._snapshots = snapshots
        super().__init__(**options)

    def _read_variable_op(self, no_copy: bool = False) -> tf.Tensor:
        values = self._snapshots.values()
        if values is None:
            return super()._read_variable_op(no_copy)
        if id(self) not in values:
            values[id(self)] = super()._read_variable_op(no_copy)
            return values[id(self)]
        return recorded_read(self, values[id(self)])

    def assign(self, value: Any, *options: Any, **named: Any) -> Any:
        self._forget()
        return super().assign(value, *options, **named)

    def assign_add(self, delta: Any, *options: Any, **named: Any) -> Any:
        self._forget()
        return super().assign_add(delta, *options, **named)

    def assign_sub(self, delta: Any, *options: Any, **named: Any) -> Any:
        self._forget()
        return super().assign_sub(delta, *options, **named)

    def _forget(self) -> None:
        (self._snapshots.values() or {}).pop(id(self), None)


def accepts_connections(address: str) -> bool:
    """Return whether a process, which may be suspended, listens at HOST:PORT."""
    return refusal(address, _CONNECT_SECONDS) is None


def serve_until_chief_ends(task: Task) -> NoReturn:
    """Run the server of this process's task, then end the process; never return.

    The status is 0 once the chief has been gone for CHIEF_LOST_SECONDS, and 1 if none has started
    within CHIEF_SECONDS.
    """
    spec = tf.train.ClusterSpec(task.cluster)
    server = tf.distribute.Server(spec, task.kind, task.index, protocol="grpc", start=True)
    name = f"{task.kind} {task.index}"
    chief = task.cluster["chief"][0]
    has_started = not missing_tasks(task, CHIEF_SECONDS, ("chief",))
    seen_at = time.monotonic()
    while has_started and time.monotonic() - seen_at < CHIEF_LOST_SECONDS:
        if accepts_connections(chief):
            seen_at = time.monotonic()
        time.sleep(_CHIEF_POLL_SECONDS)
    reason = "has ended" if has_started else f"did not start within {CHIEF_SECONDS:.0f} seconds"
    print(f"The chief ({chief}) {reason}; {name} ends.", file=sys.stderr, flush=True)
    # TensorFlow cannot stop a server, and an ordinary exit would wait for it.
    del server
    os._exit(0 if has_started else 1)


def available_workers(task: Task) -> Task:
    """Wait up to START_SECONDS for all; return the task with the workers that have started."""
    missing, workers = missing_tasks(task, START_SECONDS), task.cluster["worker"]
    for kind, what in (("ps", "parameter server"), ("worker", "worker")):
        absent = [f"{i} ({address})" for (each, i), address in missing.items() if each == kind]
        if absent and (kind == "ps" or len(absent) == len(workers)):
            listed = f"{what} {', '.join(absent)}"
            raise UserError(f"Not started after {START_SECONDS:.0f} seconds: {listed}.")
    if missing:
        absent = list(missing.values())
        print(f"Continuing without workers {', '.join(absent)}.", file=sys.stderr, flush=True)
    remaining = [address for address in workers if address not in missing.values()]
    return Task(task.kind, task.index, {**task.cluster, "worker": remaining})


class ParameterServerReplicator(base.Replicator):
    """The replicator of `parameter_server`; a step has one replica, the worker that runs it."""

    def __init__(self) -> None:
        super().__init__("parameter_server", is_async=True)
        task = _check_task(read_tf_config())
        if task.kind != "chief":
            serve_until_chief_ends(task)
        # Without this a call to a process that has ended waits instead of failing.
        os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")
        self.task = available_workers(task)
        self.num_updates_at_once = len(self.task.cluster["worker"])
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(self.task.cluster), "", "chief", 0, rpc_layer="grpc"
        )
        self._strategy = tf.distribute.ParameterServerStrategy(resolver)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self._strategy)
        self._snapshots = Snapshots()
        threading.Thread(target=_end_if_stuck, args=(self.task,), daemon=True).start()
        atexit.register(_exit_in_time, self.task)

    @contextlib.contextmanager
    def explaining_server_errors(self) -> Iterator[None]:
        """Convert errors about a lost server to UserError; compiled steps do this themselves."""
        try:
            yield
        except tf.errors.OpError as error:
            for index, address in enumerate(self.task.cluster["ps"]):
                named = f"/job:ps/replica:0/task:{index}" in str(error)
                if named or not accepts_connections(address):
                    raise UserError(_server_gone(index, address)) from error
            raise

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Create the block's variables on the parameter servers."""
        with tf.variable_creator_scope(self._snapshots.create), self._strategy.scope():
            yield

    def compile(self, step_fn: base.StepFn, steps_per_call: int = 1) -> "AsynchronousStep":
        """See `Replicator.compile`; workers run the step."""
        base.check_steps_per_call(steps_per_call)
        return AsynchronousStep(self, step_fn, steps_per_call)

    def _call_options(self, steps_left: int) -> dict[str, int]:
        return {"max_pending": steps_left}  # none is pending at the end

    def update(self, variables: Iterable[tf.Variable], values: Iterable[Any]) -> None:
        """Add, atomically, each number's change since it was read; set other types of variables."""
        for variable, value in zip(variables, values, strict=True):
            value = tf.convert_to_tensor(value, variable.dtype)
            if variable.dtype.is_floating or variable.dtype.is_integer:
                variable.assign_add(value - variable)
            else:
                variable.assign(value)

    def _replica_id(self) -> int:
        return 0


class AsynchronousStep:
    """A compiled step: a call returns the outputs of one update, while others are pending."""

    def __init__(
        self, replicator: ParameterServerReplicator, step_fn: base.StepFn, steps_per_call: int
    ):
        self._replicator, self._step_fn = replicator, step_fn
        self._steps_per_call = steps_per_call
        self._function = tf.function(self._step, autograph=False)
        self._finished: queue.Queue = queue.Queue()
        self._answers = _Answers(replicator.task)
        self._failure: UserError | None = None
        self._structure: Any = None
        self._last_outputs: list | None = None
        self.num_pending = 0

    def __call__(self, iterator: Iterator[Any], max_pending: float = math.inf) -> Any:
        """Return the outputs of a finished update; with `steps_per_call`, the last of that many.

        If its worker was killed before returning outputs, they are the previous update's. At most
        `max_pending` updates are scheduled, including the returned one, so that a run can end at
        its last step, and at most one per worker.
        """
        for made in range(self._steps_per_call):
            outputs = self._one_update(iterator, max_pending - made)
        return outputs

    def join(self) -> list:
        """Wait for all pending updates and return their outputs."""
        return [self._next_outputs() for _ in range(self.num_pending)]

    def _one_update(self, iterator: Iterator[Any], max_pending: float) -> Any:
        limit = max(1, min(self._replicator.num_updates_at_once, max_pending))
        while self.num_pending < limit:
            try:
                batch = next(iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                if not self.num_pending:
                    raise tf.errors.OutOfRangeError(None, None, "End of sequence") from None
                break
            with self._replicator.explaining_server_errors():
                remote = self._replicator._coordinator.schedule(self._function, args=(batch,))
            self.num_pending += 1
            # TensorFlow cannot wait for the first of several remote values.
            threading.Thread(target=self._fetch, args=(remote,), daemon=True).start()
        return self._next_outputs()

    def _fetch(self, remote: Any) -> None:
        try:
            self._finished.put((remote.fetch(), None))
        except Exception as error:  # raised again by `_next_outputs`
            self._finished.put((None, error))

    def _next_outputs(self) -> Any:
        if self._failure is not None:
            raise self._failure
        try:
            outputs = self._wait_for_update()
        except UserError as failure:
            self._failure = failure
            raise
        leaves = iter(outputs)
        return tf.nest.map_structure(
            lambda is_tensor: tf.convert_to_tensor(next(leaves)) if is_tensor else None,
            self._structure,
        )

    def _wait_for_update(self) -> list[Any]:
        self._answers.begin()
        while True:
            try:
                outputs, error = self._finished.get(timeout=_POLL_SECONDS)
                break
            except queue.Empty:
                self._answers.check()
        self.num_pending -= 1
        try:
            with self._replicator.explaining_server_errors():
                if error is not None:
                    raise error
            self._last_outputs = outputs
        except tf.errors.UnavailableError:
            # The coordinator reschedules unfinished updates, so this one has finished, but its
            # outputs are lost.
            if self._last_outputs is None:
                raise
        return self._last_outputs

    def _step(self, batch: Any) -> list[tf.Tensor]:
        strategy = self._replicator._strategy
        outputs = strategy.run(self._replica_step, args=(batch,))
        return tf.nest.map_structure(lambda v: strategy.experimental_local_results(v)[0], outputs)

    def _replica_step(self, batch: Any) -> list[tf.Tensor]:
        replicator = self._replicator
        with replicator._step(0, CollectiveRecord()), replicator._snapshots.of_step():
            outputs = self._step_fn(batch)
        # A remote value may not hold None.
        self._structure = tf.nest.map_structure(lambda leaf: leaf is not None, outputs)
        leaves = tf.nest.flatten(outputs)
        return [tf.convert_to_tensor(leaf) for leaf in leaves if leaf is not None]


class _Answers:
    def __init__(self, task: Task):
        self._servers, self._workers = task.cluster["ps"], task.cluster["worker"]
        self.begin()

    def begin(self) -> None:
        self._last = dict.fromkeys([*self._servers, *self._workers], time.monotonic())

    def check(self) -> None:
        for index, address in enumerate(self._servers):
            if not accepts_connections(address):
                raise UserError(_server_gone(index, address))
            if self.silent_seconds(address) > SERVER_SILENCE_SECONDS:
                raise UserError(_server_silent(index, address, SERVER_SILENCE_SECONDS))
        for index, address in enumerate(self._workers):
            if self.silent_seconds(address) > WORKER_SILENCE_SECONDS:
                silence = f"has not answered for {WORKER_SILENCE_SECONDS:.0f} seconds"
                raise UserError(
                    f"Worker {index} ({address}) {silence}, and no update has finished."
                )

    def silent_seconds(self, address: str) -> float:
        with contextlib.suppress(OSError), connect_to(address, _CONNECT_SECONDS) as connection:
            connection.sendall(_HTTP2_PREFACE)
            if connection.recv(1):
                self._last[address] = time.monotonic()
        return time.monotonic() - self._last[address]


def _end_if_stuck(task: Task) -> None:
    """End this process, from a thread, if TensorFlow would wait forever.

    This happens in a read from a suspended server, and at exit, when Python joins threads of
    TensorFlow that wait for a process that has ended.
    """
    answers, exiting_since = _Answers(task), None
    while True:
        time.sleep(STUCK_SECONDS / 10)
        if not threading.main_thread().is_alive():
            exiting_since = time.monotonic() if exiting_since is None else exiting_since
            is_late = time.monotonic() - exiting_since > EXIT_SECONDS
            if is_late and not _all_answer(task):
                os._exit(2)
        for index, address in enumerate(task.cluster["ps"]):
            # Reading from a server that has ended fails at once.
            is_silent = answers.silent_seconds(address) > STUCK_SECONDS
            if is_silent and accepts_connections(address):
                print(_server_silent(index, address, STUCK_SECONDS), file=sys.stderr, flush=True)
                os._exit(2)


def _exit_in_time(task: Task) -> None:
    """Set an alarm that ends this process if TensorFlow would wait for one that has ended.

    At this stage of the exit, Python's threads have ended, so only a signal still works.
    """
    if not _all_answer(task):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(EXIT_SECONDS)


def _all_answer(task: Task) -> bool:
    return all(accepts_connections(a) for kind in ("ps", "worker") for a in task.cluster[kind])


def _server_gone(index: int, address: str) -> str:
    return f"Parameter server {index} ({address}) is gone, and its variables are lost."


def _server_silent(index: int, address: str, seconds: float) -> str:
    return f"Parameter server {index} ({address}) has not answered for {seconds:.0f} seconds."


def _check_task(task: Task | None) -> Task:
    requires = "The strategy parameter_server requires"
    if task is None:
        raise UserError(f"{requires} TF_CONFIG; `onepass launch` sets it.")
    for kind in ("chief", "ps", "worker"):
        if not task.cluster.get(kind):
            raise UserError(f"{requires} a {kind} in TF_CONFIG, got none.")
    if len(task.cluster["chief"]) > 1:
        raise UserError(f"{requires} one chief in TF_CONFIG.")
    return task
