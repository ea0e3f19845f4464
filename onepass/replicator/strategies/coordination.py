"""Coordinate the processes of a run: start, detect lost peers, share states, stop together.

One process, the chief, reads and writes checkpoints and reports; the others follow it. TensorFlow's
own wait for a missing task has no useful time limit and cannot be interrupted.
"""

import contextlib
import ctypes
import functools
import hashlib
import itertools
import json
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context as tf_context  # barriers have no public name

from onepass.foundation.progress import during, telling
from onepass.foundation.rules import FAILURE, UserError
from onepass.replicator.launch.tf_config import KINDS, Task
from onepass.replicator.strategies.base import Replicator

_CONNECT_SECONDS = 5.0
_PAUSE_SECONDS = 0.2
SAY_SECONDS = 3.0  # after this time a task prints what it waits for
PAUSE_MICROSECONDS = 20_000
# These errors may also come from a local device, unless their message is about communication.
_AMBIGUOUS = (tf.errors.InternalError, tf.errors.FailedPreconditionError)
PEER_ERRORS = (
    *(tf.errors.UnavailableError, tf.errors.DeadlineExceededError, tf.errors.AbortedError),
    *(tf.errors.CancelledError, *_AMBIGUOUS),
)
_COMMUNICATION = re.compile(
    r"aborted by|collective|incarnation|RecvBuf|rendezvous|connect|socket|heartbeat|coordination",
    re.IGNORECASE,
)
BARRIER_SECONDS = 24 * 3600.0  # limit of a barrier while every peer is alive
PEER_CHECK_SECONDS, PEER_ANSWER_SECONDS, PEER_ATTEMPTS = 3.0, 5.0, 2
_STOP = "stop_request"  # key among the metrics of a step
_barrier_numbers = itertools.count()


def wait_for_all(task: Task, join_seconds: float) -> None:
    """Wait until every other task accepts connections at its address, as this one does."""
    with contextlib.closing(_listener(task.address)):
        if missing := missing_tasks(task, join_seconds):
            raise UserError(
                f"{task.kind} {task.index} waited {join_seconds:g} s for the other tasks of "
                f"TF_CONFIG; missing: {_list_tasks(missing)}."
            )


def missing_tasks(
    task: Task, seconds: float, kinds: Sequence[str] = KINDS
) -> dict[tuple[str, int], str]:
    """Wait until the other tasks accept connections; return the addresses of those that do not."""
    missing = {
        (kind, index): address
        for kind in kinds
        for index, address in enumerate(task.cluster.get(kind, []))
        if (kind, index) != (task.kind, task.index)
    }
    start, is_said = time.monotonic(), False

    def line() -> str:
        waited = time.monotonic() - start
        return f"{task.name} waits for {_list_tasks(missing)} of TF_CONFIG: {waited:.0f} s so far"

    with telling(line):
        while missing := {each: address for each, address in missing.items() if refusal(address)}:
            if not is_said and time.monotonic() - start >= SAY_SECONDS:
                print(line(), file=sys.stderr, flush=True)
                is_said = True
            if time.monotonic() - start > seconds:
                break
            time.sleep(_PAUSE_SECONDS)
    return missing


def _list_tasks(tasks: Mapping[tuple[str, int], str]) -> str:
    return ", ".join(f"{kind} {index} ({address})" for (kind, index), address in tasks.items())


@contextlib.contextmanager
def interruptible_startup() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM, unless ignored, end the process while TensorFlow joins a cluster.

    Meanwhile no Python code runs, and TensorFlow replaces the handler of SIGTERM; nothing is lost
    before training. Outside the main thread this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    if before[signal.SIGINT] is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    heeded = before[signal.SIGTERM] not in (signal.SIG_IGN, None)
    try:
        with default_sigterm() if heeded else contextlib.nullcontext():
            yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: not installed by Python
                signal.signal(number, handler)


def _listener(address: str) -> socket.socket:
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    port = int(address.rpartition(":")[2])
    try:
        return socket.create_server(("", port), family=family, dualstack_ipv6=dual, backlog=1024)
    except (OSError, OverflowError) as error:
        raise UserError(f"Cannot listen at this task's address {address}: {error}.") from None


def connect_to(address: str, seconds: float) -> socket.socket:
    """Connect to HOST:PORT; raise OSError if the connection is not accepted within `seconds`."""
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=seconds)


def refusal(address: str, seconds: float = _CONNECT_SECONDS) -> Exception | None:
    """Return the error from an attempt to connect to HOST:PORT, or None on success."""
    try:
        connect_to(address, seconds).close()
    except (OSError, OverflowError, ValueError) as error:
        return error
    return None


@contextlib.contextmanager
def default_sigterm() -> Iterator[None]:
    """Return a context in which SIGTERM ends the process, even if other code installs a handler.

    A native thread, which does not need the GIL, restores the default action fifty times a second.
    """
    loop, libc = _loop(), ctypes.CDLL(None)
    ended, thread = ctypes.c_int32(0), ctypes.c_ulong()
    start = ctypes.c_void_p(loop.address)
    if libc.pthread_create(ctypes.byref(thread), None, start, ctypes.byref(ended)):
        yield  # no thread could be created
        return
    try:
        yield
    finally:
        ended.value = 1
        libc.pthread_join(thread, None)


@functools.cache
def _loop() -> Any:
    """Return the compiled thread function, which ends once the int32 at its argument is set."""
    import numba
    import numpy as np

    libc = ctypes.CDLL(None)
    act, pause, number = libc.signal, libc.usleep, int(signal.SIGTERM)
    act.argtypes, act.restype = (ctypes.c_int, ctypes.c_size_t), ctypes.c_size_t
    pause.argtypes, pause.restype = (ctypes.c_uint,), ctypes.c_int

    @numba.cfunc("voidptr(voidptr)")
    def loop(argument: Any) -> Any:
        ended = numba.carray(argument, 1, np.int32)
        while ended[0] == 0:
            act(number, 0)  # SIG_DFL
            pause(PAUSE_MICROSECONDS)
        return argument

    return loop


class PeerLostError(UserError):
    """Another process of the run has ended, or did not answer in time."""

    exit_status = FAILURE


def runs_in_lockstep(replicator: Replicator) -> bool:
    """Return whether several processes run every step together; an asynchronous run has one."""
    return replicator.num_workers > 1


@contextlib.contextmanager
def explaining_peer_errors(replicator: Replicator) -> Iterator[None]:
    """Convert TensorFlow's errors about a lost peer to PeerLostError."""
    try:
        yield
    except PEER_ERRORS as error:
        ambiguous = isinstance(error, _AMBIGUOUS)
        is_local = ambiguous and not _COMMUNICATION.search(str(error.message))
        if is_local or not runs_in_lockstep(replicator):
            raise
        slow = isinstance(error, tf.errors.DeadlineExceededError)
        longer = "; --strategy multi_worker:SECONDS sets the time limit" if slow else ""
        raise PeerLostError(
            f"Another process of this run is gone or does not answer ({_reason(error)}){longer}."
        ) from error


def _reason(error: tf.errors.OpError) -> str:
    kind = type(error).__name__.removesuffix("Error")
    text = str(error.message)
    cause = re.search(r"aborted by: (.*)", text)
    if cause is None and text.startswith("Graph execution error"):
        return kind
    line = " ".join((cause.group(1) if cause else text).split("\n")[0].split())
    return f"{kind}: {line.split('. ')[0][:160].rstrip(' :')}"


def barrier(replicator: Replicator) -> None:
    """Wait, for any length of time, until every process of the run has called this function.

    Unlike a collective, which has a time limit, it fails only, with PeerLostError and within about
    20 seconds, if a peer has ended or hangs.
    """
    if not runs_in_lockstep(replicator):
        return
    errors: list[BaseException] = []
    name = f"barrier_{next(_barrier_numbers)}"
    waiting = threading.Thread(target=_wait, args=(name, errors), daemon=True)
    with explaining_peer_errors(replicator), during("waiting for the other processes of this run"):
        waiting.start()
        while waiting.is_alive():
            waiting.join(PEER_CHECK_SECONDS)
            if waiting.is_alive():
                _check_peers()
        if errors:
            raise errors[0]


@contextlib.contextmanager
def variable_scope(replicator: Replicator) -> Iterator[None]:
    """Enter the replicator's scope; raise PeerLostError if a peer is lost."""
    with explaining_peer_errors(replicator), replicator.scope():
        yield


def broadcast_initial_state(
    replicator: Replicator, variables: Mapping[str, tf.Variable], identity: dict
) -> None:
    """Set the variables of every process to the chief's; the JSON `identity` must be equal."""
    barrier(replicator)
    if not runs_in_lockstep(replicator):
        return
    text = json.dumps(identity, sort_keys=True).encode()
    digest = int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "big")  # fits an int64

    def step(_: Any) -> tf.Tensor:
        values = replicator.broadcast([tf.identity(v) for v in variables.values()])
        replicator.update(list(variables.values()), values)
        return replicator.all_gather(tf.constant(digest, tf.int64))

    digests = _run_once(replicator, step).numpy()
    local = replicator.num_replicas // replicator.num_workers
    others = [i // local for i, other in enumerate(digests) if other != digests[0]]
    if others:
        raise UserError(
            f"Worker {others[0]} was started with another configuration or other data than worker "
            "0; all processes of a run must have the same options."
        )


def of_chief(replicator: Replicator, number: int) -> int:
    """Return the chief's value of `number` in every process of a run."""
    if not runs_in_lockstep(replicator):
        return number
    return int(_run_once(replicator, lambda _: replicator.broadcast(tf.constant(number))))


def _run_once(replicator: Replicator, step: Callable[[Any], tf.Tensor]) -> tf.Tensor:
    rows = tf.data.Dataset.from_tensors(tf.zeros([replicator.num_replicas]))
    with explaining_peer_errors(replicator):
        return replicator.compile(step)(iter(replicator.batches(rows)))


class SharedStopRequest:
    """A request of any process to stop, or to wait, which all follow after the same step.

    The request is a float variable in each process, in `metric_variables` (empty for one process).
    Its mean over replicas is computed in the same collective as the metrics of the next step. The
    most urgent request is followed; `reasons` are in ascending order of urgency.
    """

    def __init__(self, reasons: Sequence[str], replicator: Replicator):
        self._reasons = reasons
        self._decision: str | None = None
        self._requested: str | None = None
        self.metric_variables: dict[str, tf.Variable] = {}
        if runs_in_lockstep(replicator):
            with variable_scope(replicator):
                zeros = tf.zeros([len(reasons)])
                self.metric_variables[_STOP] = tf.Variable(zeros, trainable=False, name=_STOP)

    def request(self, reason: str | None) -> None:
        """Send a reason with the next step; None: no request."""
        if self.metric_variables and reason != self._requested:
            self._requested = reason
            self.metric_variables[_STOP].assign([float(each == reason) for each in self._reasons])

    def take_from(self, metrics: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Store the stop requests among a step's metrics, and return the other metrics."""
        if self.metric_variables:
            mean = metrics[_STOP].numpy()
            requested = [r for r, share in zip(self._reasons, mean, strict=True) if share > 0]
            self._decision = requested[-1] if requested else None
        return {name: value for name, value in metrics.items() if name not in self.metric_variables}

    def decide_stop(self, own: str | None) -> str | None:
        """Return the request that all processes received, if any; with only one process, `own`."""
        return self._decision if self.metric_variables else own


def _wait(name: str, errors: list[BaseException]) -> None:
    try:
        tf_context.context().wait_at_barrier(name, int(BARRIER_SECONDS * 1000))
    except Exception as error:  # raised again by the waiting thread
        errors.append(error)


def _check_peers() -> None:
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    cluster, own = resolver.cluster_spec(), (resolver.task_type, resolver.task_id)
    for job in cluster.jobs:
        for task in cluster.task_indices(job):
            if (job, task) != own:
                _check_peer(f"/job:{job}/replica:0/task:{task}")


def _check_peer(name: str) -> None:
    for attempt in range(PEER_ATTEMPTS):
        try:
            tf_context.context().check_collective_ops_peer_health(
                name, timeout_in_ms=int(PEER_ANSWER_SECONDS * 1000)
            )
            return
        except PEER_ERRORS:
            if attempt + 1 == PEER_ATTEMPTS:
                raise
