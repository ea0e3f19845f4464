"""Run worker and parameter-server processes, and check whether they answer."""

import math
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import NoReturn

import tensorflow as tf

from onepass.foundation.errors import UserError
from onepass.replicator.launch.tf_config import Task
from onepass.replicator.strategies.cluster_startup import connect_to, refusal, reporting_wait

START_SECONDS = 60.0  # the chief's wait for workers and servers to start
CHIEF_SECONDS = 600.0  # a server's wait for the chief to start
CHIEF_LOST_SECONDS = 10.0  # a chief that accepts no connection for this long has ended
_CONNECT_SECONDS, _POLL_SECONDS = 2.0, 0.5
# The connection preface of an HTTP/2 client with empty SETTINGS (RFC 9113, 3.4). A running gRPC
# server answers with its preface; a suspended one still accepts connections, but does not answer.
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def accepts_connections(address: str) -> bool:
    """Return whether a process, which may be suspended, listens at HOST:PORT."""
    return refusal(address, _CONNECT_SECONDS) is None


def responds(address: str) -> bool:
    """Return whether a gRPC server at HOST:PORT runs and answers."""
    try:
        with connect_to(address, _CONNECT_SECONDS) as connection:
            connection.sendall(_HTTP2_PREFACE)
            return bool(connection.recv(1))
    except OSError:
        return False


def serve_until_chief_ends(task: Task) -> NoReturn:
    """Run the server of this process's task, then end the process; never return.

    The exit status is 0 once the chief has been gone for CHIEF_LOST_SECONDS, and 1 if no chief has
    started within CHIEF_SECONDS.
    """
    spec = tf.train.ClusterSpec(task.cluster)
    server = tf.distribute.Server(spec, task.kind, task.index, protocol="grpc", start=True)
    name = f"{task.kind} {task.index}"
    chief = task.cluster["chief"][0]
    with reporting_wait(task) as say:
        has_started = wait_until(
            lambda: accepts_connections(chief), CHIEF_SECONDS, lambda: say(f"the chief ({chief})")
        )
    if has_started:
        wait_until(
            lambda: not accepts_connections(chief), math.inf, lasting_seconds=CHIEF_LOST_SECONDS
        )
    reason = "has ended" if has_started else f"did not start within {CHIEF_SECONDS:.0f} seconds"
    print(f"The chief ({chief}) {reason}; {name} ends.", file=sys.stderr, flush=True)
    # TensorFlow cannot stop a server, and an ordinary exit would wait for it.
    del server
    os._exit(0 if has_started else 1)


def wait_until(
    condition: Callable[[], bool],
    seconds: float,
    say: Callable[[], None] = lambda: None,
    lasting_seconds: float = 0.0,
) -> bool:
    """Wait until a condition holds for `lasting_seconds`; return whether it did in time."""
    start, since = time.monotonic(), None
    while time.monotonic() - start < seconds:
        now = time.monotonic()
        since = (since or now) if condition() else None
        if since is None:
            say()
        if since is not None and now - since >= lasting_seconds:
            return True
        time.sleep(_POLL_SECONDS)
    return False


def available_workers(task: Task) -> list[int]:
    """Wait up to START_SECONDS for all workers; return the indices of those that have started."""
    servers, workers = task.cluster["ps"], task.cluster["worker"]
    with reporting_wait(task) as say:
        wait_until(
            lambda: not _unreachable(servers) and not _unreachable(workers),
            START_SECONDS,
            lambda: say("parameter servers and workers"),
        )
    if _unreachable(servers):
        raise UserError(_missing_text("parameter server", servers, _unreachable(servers)))
    absent = _unreachable(workers)
    if len(absent) == len(workers):
        raise UserError(_missing_text("worker", workers, absent))
    return [index for index in range(len(workers)) if index not in absent]


def _unreachable(addresses: Iterable[str]) -> list[int]:
    return [index for index, address in enumerate(addresses) if not accepts_connections(address)]


def _missing_text(what: str, addresses: list[str], absent: list[int]) -> str:
    listed = ", ".join(f"{index} ({addresses[index]})" for index in absent)
    return f"Not started after {START_SECONDS:.0f} seconds: {what} {listed}."
