"""Waits until every task of a cluster has started, before TensorFlow connects.

TensorFlow's own wait for a missing task has no useful time limit and cannot be interrupted.
"""

import contextlib
import socket
import time

from replicator.launch.tf_config import Task
from replicator.runs.errors import UserError

_CONNECT_SECONDS = 5.0
_PAUSE_SECONDS = 0.2


def wait_for_all(task: Task, join_seconds: float) -> None:
    """Returns once every other task has accepted a connection at its address.

    Until then this process listens at its own, where TensorFlow's server will listen next.

    Raises:
      UserError: the port of this task is taken, or another has not started in `join_seconds`.
    """
    own = task.cluster[task.kind][task.index]
    missing = {
        f"{kind} {index} ({address})": address
        for kind, addresses in task.cluster.items()
        for index, address in enumerate(addresses)
        if (kind, index) != (task.kind, task.index)
    }
    deadline = time.monotonic() + join_seconds
    with contextlib.closing(_listener(own)):
        while missing := {n: a for n, a in missing.items() if refusal(a)}:
            if time.monotonic() > deadline:
                raise UserError(
                    f"{task.kind} {task.index} waited {join_seconds:g} s for the other tasks "
                    f"of TF_CONFIG; not there: {', '.join(missing)}."
                )
            time.sleep(_PAUSE_SECONDS)


def _listener(address: str) -> socket.socket:
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    port = int(address.rpartition(":")[2])
    try:
        return socket.create_server(("", port), family=family, dualstack_ipv6=dual, backlog=1024)
    except (OSError, OverflowError) as error:
        raise UserError(f"Cannot listen at {address}, this task's own: {error}.") from None


def connected(address: str, seconds: float) -> socket.socket:
    """A connection to HOST:PORT; OSError where none is accepted in so many seconds."""
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=seconds)


def refusal(address: str, seconds: float = _CONNECT_SECONDS) -> Exception | None:
    """Why no connection to HOST:PORT is accepted; None where one is."""
    try:
        connected(address, seconds).close()
    except (OSError, OverflowError, ValueError) as error:
        return error
    return None
